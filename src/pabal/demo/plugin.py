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

FIRST_RECONNECT_DELAY, MAX_RECONNECT_DELAY = 0.5, 10.0
"""Seconds until we come back to a hub that hung up, at first and at most."""
STREAM_TIMEOUT = httpx2.Timeout(10.0, read=60.0)
"""The hub gives a sign of life every twenty seconds."""
ENDED_HTTP_STATUSES = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.GONE})
ENDED_SESSION_STATES = frozenset({"expired", "unknown"})

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class DemoStreamEvent:
    """One event of the stream."""

    name: str
    data: JsonObject = field(repr=False)
    event_id: str = ""


class DemoRelaySession:
    """One token, from its pairing code to its end."""

    def __init__(self, web: httpx2.AsyncClient, response: JsonObject) -> None:
        self._web = web
        self._token: str = response["sessionToken"]
        self.code: str = response["pairingCode"]

    async def status(self) -> str:
        """How the hub sees this session; one that it does not know is `unknown`."""
        answer = await self._web.get(f"/v1/sessions/{self._token}/status")
        return "unknown" if answer.status_code == HTTPStatus.NOT_FOUND else json_content(answer)["status"]

    async def events(self) -> AsyncGenerator[DemoStreamEvent]:
        """Everything the stream tells, across as many connections as it takes, until the token is dead."""
        last, failures = "", 0
        while True:
            try:
                async with self._stream(last) as answer:
                    if answer.status_code in ENDED_HTTP_STATUSES:
                        return
                    answer.raise_for_status()
                    async for told in read_sse_events(answer.aiter_bytes()):
                        last, failures = told.event_id or last, 0
                        yield told
                        if told.name == "pairing_complete":
                            break  # as the plugins do: hang up, and come back as the account
                    else:
                        failures += 1
                if failures and await self.status() in ENDED_SESSION_STATES:
                    return
            except httpx2.HTTPError as error:
                failures += 1
                log.debug("stream broken", error=str(error) or type(error).__name__)
            if failures:
                await asyncio.sleep(min(FIRST_RECONNECT_DELAY * 2 ** (failures - 1), MAX_RECONNECT_DELAY))

    async def reply(self, message_id: str, response: JsonObject) -> httpx2.Response:
        body = {"messageId": message_id, "response": response}
        return await self._web.post("/openclaw/reply", json=body, headers=self._auth_headers())

    def _stream(self, last: str) -> Any:
        resumed = {"last-event-id": last} if last else {}
        return self._web.stream("GET", "/v1/events", headers=self._auth_headers() | resumed, timeout=STREAM_TIMEOUT)

    def _auth_headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._token}"}


async def create_demo_session(web: httpx2.AsyncClient) -> DemoRelaySession:
    """A new session; its pairing code is for somebody to type in the chat."""
    return DemoRelaySession(web, json_content(await web.post("/v1/sessions/create", json={})))


async def is_hub_healthy(web: httpx2.AsyncClient) -> bool:
    return (await web.get("/health")).status_code == HTTPStatus.OK


def json_content(response: httpx2.Response) -> JsonObject:
    response.raise_for_status()
    return cast("JsonObject", response.json())


async def read_sse_events(chunks: AsyncIterable[bytes]) -> AsyncIterator[DemoStreamEvent]:
    """Read events as they come. Only LF ends a line here: what JSON leaves unescaped may look like a line's end too."""
    held = b""
    async for chunk in chunks:
        held += chunk
        *blocks, held = held.split(b"\n\n")
        for block in blocks:
            fields = dict(line.split(b": ", 1) for line in block.split(b"\n") if not line.startswith(b":"))
            if b"data" in fields:
                name, number = fields.get(b"event", b"message").decode(), fields.get(b"id", b"").decode()
                yield DemoStreamEvent(name, msgspec.json.decode(fields[b"data"]), number)
