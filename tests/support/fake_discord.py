"""A fake of Discord's API for bots: a server on loopback with rate limits, refusals and nonces.

It has no clock: a reached limit lasts until `refill`, and a nonce is known until `forget_nonces`.
"""

import asyncio
import json
from collections import Counter, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from support.receiver import Request, Responder, close_connection, hang, read_request, respond_with

TOKEN = "bot-secret"
MAX_NONCE_LENGTH = 25


@dataclass(frozen=True, slots=True)
class Message:
    """A posted message."""

    id: str
    channel: str
    nonce: str | None
    body: dict[str, Any]

    @property
    def title(self) -> str:
        return self.body["embeds"][0].get("title", "")


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """The reply to one call in place of the API's. With `accepted` the call still takes effect."""

    responder: Responder
    accepted: bool = False


FAILURE = ScriptedReply(respond_with(503))
NO_RESPONSE = ScriptedReply(hang)
LOST_RESPONSE = ScriptedReply(close_connection, accepted=True)


@dataclass
class FakeDiscord:
    """Users with DMs, unless in `closed_dms` or `unknown_users`, and the channels of one `guild`."""

    guild: set[str] = field(default_factory=set[str])
    closed_dms: set[str] = field(default_factory=set[str])
    unknown_users: set[str] = field(default_factory=set[str])
    channel_limit: int = 1_000_000
    """Messages a channel accepts until `refill`."""
    global_limit: int = 1_000_000
    """Calls the bot may make until `refill`."""
    retry_after: float = 3.5
    unresponsive: bool = False
    """Never respond to any call."""
    unresponsive_users: set[str] = field(default_factory=set[str])
    """Users to claimer no message gets a response."""
    script: "deque[ScriptedReply]" = field(default_factory=deque[ScriptedReply])
    """Replies to the next calls."""
    messages: list[Message] = field(default_factory=list[Message])
    requests: list[Request] = field(default_factory=list[Request])
    max_concurrent: int = 0
    """The largest number of concurrent calls."""
    url: str = ""
    _ids: Any = field(default_factory=lambda: count(1_000_000))
    _dms: dict[str, str] = field(default_factory=dict[str, str])
    _nonces: dict[str, Message] = field(default_factory=dict[str, Message])
    _spent: Counter[str] = field(default_factory=Counter[str])
    _in_flight: int = 0
    _tasks: set["asyncio.Task[None]"] = field(default_factory=set["asyncio.Task[None]"])

    def messages_to(self, user: str) -> list[Message]:
        return [item for item in self.messages if item.channel == self._dms.get(user)]

    def messages_in(self, channel: str) -> list[Message]:
        return [item for item in self.messages if item.channel == channel]

    @property
    def dm_opens(self) -> int:
        """Number of calls that open a DM channel."""
        return sum(item.target.endswith("/users/@me/channels") for item in self.requests)

    @property
    def rejected_calls(self) -> int:
        """Calls beyond a limit. The real Discord blocks a bot with too many of them."""
        return self._spent["refused"]

    def dm_channel_of(self, user: str) -> str:
        return self._dms.setdefault(user, str(next(self._ids)))

    def refill(self) -> None:
        self._spent.clear()

    def forget_nonces(self) -> None:
        self._nonces.clear()

    def delete_channel(self, user: str) -> None:
        """Delete a DM channel. The next one opened has another id."""
        del self._dms[user]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while first := await reader.read(1):
                    request = await read_request(first, reader, 0)
                    self.requests.append(request)
                    if not await self._handle(request, reader, writer):
                        break
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _handle(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        self._in_flight += 1
        self.max_concurrent = max(self.max_concurrent, self._in_flight)
        try:
            await asyncio.sleep(0)  # let concurrent calls arrive
            return await self._reply_to(request)(reader, writer)
        finally:
            self._in_flight -= 1

    def _reply_to(self, request: Request) -> Responder:
        fate = self.script.popleft() if self.script else None
        if self.unresponsive or any(f"/{self._dms.get(user)}/" in request.target for user in self.unresponsive_users):
            return hang
        if fate is None:
            return self.answer(request)
        if fate.accepted:
            self.answer(request)
        return fate.responder

    def answer(self, request: Request) -> Responder:
        """The API's reply to a call. Counts it against the limits."""
        if request.headers.get("authorization") != f"Bot {TOKEN}":
            return error_reply(401, 0, "401: Unauthorized")
        self._spent["everywhere"] += 1
        if self._spent["everywhere"] > self.global_limit:
            return self._rate_limited(everywhere=True)
        body: dict[str, Any] = json.loads(request.body)
        path = request.target.removeprefix("/api/v10")
        if path == "/users/@me/channels":
            return self.open(body["recipient_id"])
        channel = path.removeprefix("/channels/").removesuffix("/messages")
        if channel not in self.guild and channel not in self._dms.values():
            return error_reply(404, 10003, "Unknown Channel")
        self._spent[channel] += 1
        if self._spent[channel] > self.channel_limit:
            return self._rate_limited(everywhere=False)
        return self.create_message(channel, body)

    def open(self, user: str) -> Responder:
        if user in self.unknown_users:
            return error_reply(400, 50033, "Invalid Recipient(s)")
        return json_reply(200, {"id": self.dm_channel_of(user), "type": 1})

    def create_message(self, channel: str, body: dict[str, Any]) -> Responder:
        nonce = body.get("nonce")
        if nonce is not None and len(nonce) > MAX_NONCE_LENGTH:
            return error_reply(400, 50035, "Invalid Form Body")
        if {user for user, dm in self._dms.items() if dm == channel} & self.closed_dms:
            return error_reply(403, 50007, "Cannot send messages to this user")
        known = self._nonces.get(nonce) if nonce and body.get("enforce_nonce") else None
        message = known or Message(str(next(self._ids)), channel, nonce, body)
        if known is None:
            self.messages.append(message)
            if nonce:
                self._nonces[nonce] = message
        left = self.channel_limit - self._spent[channel]
        headers = {
            "x-ratelimit-bucket": "a1b2c3",
            "x-ratelimit-limit": str(self.channel_limit),
            "x-ratelimit-remaining": str(left),
            "x-ratelimit-reset-after": str(self.retry_after),
        }
        return json_reply(200, {"id": message.id, "channel_id": channel, "nonce": nonce}, headers)

    def _rate_limited(self, *, everywhere: bool) -> Responder:
        self._spent["refused"] += 1
        fields = {"message": "You are being rate limited.", "retry_after": self.retry_after, "global": everywhere}
        headers = {
            "retry-after": str(int(self.retry_after) + 1),
            "x-ratelimit-scope": "global" if everywhere else "user",
        }
        return json_reply(429, fields, headers | ({"x-ratelimit-global": "true"} if everywhere else {}))

    async def close(self) -> None:
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def json_reply(status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> Responder:
    return respond_with(status, json.dumps(body).encode(), {"content-type": "application/json"} | (headers or {}))


def error_reply(status: int, code: int, message: str) -> Responder:
    return json_reply(status, {"message": message, "code": code})


@asynccontextmanager
async def run_fake_discord(*channels: str) -> AsyncGenerator[FakeDiscord]:
    """Run a fake Discord on a free port, with these channels in its guild."""
    discord = FakeDiscord({*channels})
    server = await asyncio.start_server(discord.serve, "127.0.0.1", 0)
    discord.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/api/v10"
    try:
        yield discord
    finally:
        server.close()
        await discord.close()
        await server.wait_closed()
