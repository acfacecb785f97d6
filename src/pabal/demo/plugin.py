"""The session family, as the plugins of OpenClaw and Hermes speak it: five calls and nothing else."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, cast

import httpx2
import msgspec

from pabal.core.log import get_logger

log = get_logger()

FIRST, LONGEST = 0.5, 10.0
"""Seconds until we come back to a hub that hung up, at first and at most."""
PATIENCE = httpx2.Timeout(10.0, read=60.0)
"""The hub gives a sign of life every twenty seconds."""
DEAD = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.GONE})
OVER = frozenset({"expired", "unknown"})

Data = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Told:
    """One event of the stream."""

    name: str
    data: Data = field(repr=False)
    number: str = ""


class Session:
    """One token, from its pairing code to its end."""

    def __init__(self, web: httpx2.AsyncClient, created: Data) -> None:
        self._web = web
        self._token: str = created["sessionToken"]
        self.code: str = created["pairingCode"]

    async def status(self) -> str:
        """How the hub sees this session; one that it does not know is `unknown`."""
        answer = await self._web.get(f"/v1/sessions/{self._token}/status")
        return "unknown" if answer.status_code == HTTPStatus.NOT_FOUND else content_of(answer)["status"]

    async def events(self) -> AsyncGenerator[Told]:
        """Everything the stream tells, across as many connections as it takes, until the token is dead."""
        last, failures = "", 0
        while True:
            try:
                async with self._stream(last) as answer:
                    if answer.status_code in DEAD:
                        return
                    answer.raise_for_status()
                    async for told in read(answer.aiter_bytes()):
                        last, failures = told.number or last, 0
                        yield told
                        if told.name == "pairing_complete":
                            break  # as the plugins do: hang up, and come back as the account
                    else:
                        failures += 1
                if failures and await self.status() in OVER:
                    return
            except httpx2.HTTPError as error:
                failures += 1
                log.debug("stream broken", why=str(error) or type(error).__name__)
            if failures:
                await asyncio.sleep(min(FIRST * 2 ** (failures - 1), LONGEST))

    async def reply(self, message_id: str, response: Data) -> httpx2.Response:
        body = {"messageId": message_id, "response": response}
        return await self._web.post("/openclaw/reply", json=body, headers=self._shown())

    def _stream(self, last: str) -> Any:
        resumed = {"last-event-id": last} if last else {}
        return self._web.stream("GET", "/v1/events", headers=self._shown() | resumed, timeout=PATIENCE)

    def _shown(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._token}"}


async def create(web: httpx2.AsyncClient) -> Session:
    """A new session; its pairing code is for somebody to type in the chat."""
    return Session(web, content_of(await web.post("/v1/sessions/create", json={})))


async def is_well(web: httpx2.AsyncClient) -> bool:
    return (await web.get("/health")).status_code == HTTPStatus.OK


def content_of(answer: httpx2.Response) -> Data:
    answer.raise_for_status()
    return cast("Data", answer.json())


async def read(chunks: AsyncIterable[bytes]) -> AsyncIterator[Told]:
    """Read events as they come. Only LF ends a line here: what JSON leaves unescaped may look like a line's end too."""
    held = b""
    async for chunk in chunks:
        held += chunk
        *blocks, held = held.split(b"\n\n")
        for block in blocks:
            fields = dict(line.split(b": ", 1) for line in block.split(b"\n") if not line.startswith(b":"))
            if b"data" in fields:
                name, number = fields.get(b"event", b"message").decode(), fields.get(b"id", b"").decode()
                yield Told(name, msgspec.json.decode(fields[b"data"]), number)
