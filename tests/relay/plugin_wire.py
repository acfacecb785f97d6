"""The public plugins as scripted clients: their requests, headers, timeouts and reconnect rules, without their hosts.

`docs/kakao.md` describes the same rules. Delays are recorded and not waited for; the jitter of up to 20 % is left out.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2

from support.relay_rows import skill_response

MAX_RETRIES = 10
BASE_DELAY, MAX_DELAY = 1.0, 30.0
REPLY_TIMEOUT = 10.0
INVALID_TOKEN_STATUSES = {401, 410}

Agent = Callable[[str], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class PluginWire:
    """What one plugin does on the wire, and in what it differs from the others."""

    name: str
    headers: dict[str, str]
    """Those of its HTTP library."""
    clean_close_delay: float
    """Seconds before it reconnects after the hub closed a stream."""
    has_concurrent_turns: bool
    """Whether it reads on while the agent works; otherwise the rest of the stream stays unread until it replied."""
    hangs_up_after_pairing: bool = True
    deletes_invalid_token: bool = True


HERMES = PluginWire(
    "hermes",
    {"user-agent": "Python/3.11 aiohttp/3.13.2", "accept-encoding": "gzip, deflate"},
    clean_close_delay=1.0,
    has_concurrent_turns=True,
)
FETCH_HEADERS = {
    "user-agent": "node",
    "accept-language": "*",
    "sec-fetch-mode": "cors",
    "accept-encoding": "gzip, deflate",
}
OPENCLAW = PluginWire("openclaw", FETCH_HEADERS, clean_close_delay=0.0, has_concurrent_turns=False)
FIRST_OPENCLAW = PluginWire(
    "openclaw, first versions",
    FETCH_HEADERS,
    clean_close_delay=0.0,
    has_concurrent_turns=False,
    hangs_up_after_pairing=False,
    deletes_invalid_token=False,
)
WIRES = (HERMES, OPENCLAW, FIRST_OPENCLAW)


class StreamFailedError(Exception):
    """The stream was refused, or broke."""


@dataclass(slots=True)
class PluginClient:
    """One installation of a plugin, and what it sent and received."""

    wire: PluginWire
    address: str
    agent: Agent
    web: httpx2.AsyncClient
    token: str | None = None
    code: str = ""
    gave_up: bool = False
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list[tuple[str, str, dict[str, str]]])
    """Method, path and the plugin's own headers, in order."""
    opened: list[int] = field(default_factory=list[int])
    """The statuses of its streams, in order."""
    delays: list[float] = field(default_factory=list[float])
    events: list[str] = field(default_factory=list[str])
    turns: list[str] = field(default_factory=list[str])
    """The texts that started a turn, in order. A text twice is a second turn."""
    replies: dict[str, int] = field(default_factory=dict[str, int])
    """The status of each reply, by the text that it answers."""
    last_event_id: str | None = None
    _attempt: int = 0
    _reading: asyncio.Timeout | None = None
    _is_broken: bool = False
    _turns: set["asyncio.Task[None]"] = field(default_factory=set["asyncio.Task[None]"])

    async def run(self) -> None:
        """Create a session, unless there is a token, and keep a stream open until the token is invalid."""
        if self.token is None:
            session = (await self.send("POST", "v1/sessions/create", {}, {"content-type": "application/json"})).json()
            self.token, self.code = session["sessionToken"], session["pairingCode"]
        while True:
            try:
                is_hung_up = await self._listen()
            except (StreamFailedError, httpx2.HTTPError, TimeoutError):
                self._attempt += 1
                if self._attempt >= MAX_RETRIES:
                    self.gave_up = True
                    return
                await self._pause(min(BASE_DELAY * 2**self._attempt, MAX_DELAY))
            else:
                if self.token is None:
                    return
                if not is_hung_up:
                    await self._pause(self.wire.clean_close_delay)

    async def check_status(self) -> str:
        response = await self.send("GET", f"v1/sessions/{self.token}/status", None, {"accept": "application/json"})
        return response.json()["status"]

    async def check_health(self) -> int:
        """The only request whose path the plugins do not normalise: the configured address ends in a slash."""
        return (await self.send("GET", "/health", None, self._authorization)).status_code

    def drop(self) -> None:
        """Lose the connection: the network changed, or the plugin's limit of 300 seconds per connection is over."""
        self._is_broken = True
        if self._reading is not None:
            self._reading.reschedule(0)

    async def send(self, method: str, path: str, body: Any, headers: dict[str, str]) -> httpx2.Response:
        self._record(method, path, headers)
        content = None if body is None else json.dumps(body).encode()
        async with asyncio.timeout(REPLY_TIMEOUT):
            return await self.web.request(method, f"{self.address}/{path}", content=content, headers=headers)

    @property
    def _authorization(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}"}

    def _record(self, method: str, path: str, headers: dict[str, str]) -> None:
        token = str(self.token)
        shown = {name: value.replace(token, "TOKEN") for name, value in headers.items()}
        self.requests.append((method, f"/{path.replace(token, 'TOKEN')}", shown))

    async def _listen(self) -> bool:
        """One stream. True if the plugin hung up because its session is paired now."""
        headers = self._authorization | {"accept": "text/event-stream", "cache-control": "no-cache"}
        if self.last_event_id:
            headers["last-event-id"] = self.last_event_id
        self._record("GET", "v1/events", headers)
        self._is_broken = False
        async with self.web.stream("GET", f"{self.address}/v1/events", headers=headers) as response:
            self.opened.append(response.status_code)
            if response.status_code in INVALID_TOKEN_STATUSES and self.wire.deletes_invalid_token:
                self.token = None
                return False
            if not response.is_success:
                raise StreamFailedError(response.status_code)
            self._attempt = 0
            unread = ""
            chunks = response.aiter_text()
            while True:
                async with asyncio.timeout(0 if self._is_broken else None) as self._reading:
                    chunk = await anext(chunks, None)
                self._reading = None
                if chunk is None:
                    return False
                *blocks, unread = (unread + chunk).split("\n\n")
                if await self._take(blocks):
                    return True

    async def _take(self, blocks: list[str]) -> bool:
        """The events of one read. True if the plugin hangs up after them."""
        is_paired = False
        for block in blocks:
            fields = dict(line.split(":", 1) for line in block.split("\n") if ":" in line[1:])
            if "event" not in fields or "data" not in fields:
                continue
            name, data = fields["event"].strip(), json.loads(fields["data"])
            self.last_event_id = fields["id"].strip()
            self.events.append(name)
            is_paired |= name == "pairing_complete" and self.wire.hangs_up_after_pairing
            if name != "message":
                continue
            if self.wire.has_concurrent_turns:
                turn = asyncio.create_task(self._turn(data))
                self._turns.add(turn)
            else:
                await self._turn(data)
        return is_paired

    async def _turn(self, message: dict[str, Any]) -> None:
        """Let the agent answer, and reply once: a reply that failed is not repeated."""
        text = message["normalized"]["text"]
        self.turns.append(text)
        body = {"messageId": message["id"], "response": skill_response(await self.agent(text))}
        headers = self._authorization | {"content-type": "application/json"}
        response = await self.send("POST", "openclaw/reply", body, headers)
        self.replies[text] = response.status_code

    @staticmethod
    async def answer(text: str) -> str:
        """The agent that answers at once."""
        return f"re: {text}"

    async def _pause(self, delay: float) -> None:
        self.delays.append(delay)
        await asyncio.sleep(0)

    async def finish(self) -> None:
        """Raise what a turn raised."""
        await asyncio.gather(*self._turns)


@asynccontextmanager
async def running_plugin(
    wire: PluginWire, address: str, agent: Agent = PluginClient.answer, token: str | None = None
) -> AsyncGenerator[PluginClient]:
    one_request_per_connection = httpx2.Limits(max_keepalive_connections=0)
    async with httpx2.AsyncClient(headers=wire.headers, timeout=None, limits=one_request_per_connection) as web:
        client = PluginClient(wire, address, agent, web, token)
        task = asyncio.create_task(client.run(), name=wire.name)
        try:
            yield client
            await client.finish()
            if task.done():
                task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
