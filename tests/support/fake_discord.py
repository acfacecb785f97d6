"""Discord, as far as a bot sees of it: a real server on loopback that counts, refuses and forgets as the real one does.

It has no clock: a limit that was reached stays so until `refill`, and a nonce is known until `forget_nonces`.
"""

import asyncio
import json
from collections import Counter, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from support.receiver import Mood, Request, answers, closes, hangs, read_request

TOKEN = "bot-secret"
LONGEST_NONCE = 25


@dataclass(frozen=True, slots=True)
class Message:
    """What was said in a channel."""

    id: str
    channel: str
    nonce: str | None
    body: dict[str, Any]

    @property
    def title(self) -> str:
        return self.body["embeds"][0].get("title", "")


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of one call instead of an answer; `accepted`: what it asked for is done all the same."""

    mood: Mood
    accepted: bool = False


FAILS = Fate(answers(503))
HANGS = Fate(hangs)
LOST = Fate(closes, accepted=True)


@dataclass
class Discord:
    """Users who take DMs unless they are `closed` or `strangers`, and the channels of one `guild`."""

    guild: set[str] = field(default_factory=set[str])
    closed: set[str] = field(default_factory=set[str])
    strangers: set[str] = field(default_factory=set[str])
    per_channel: int = 1_000_000
    """Messages a channel takes until `refill`."""
    everywhere: int = 1_000_000
    """Calls the bot may make until `refill`."""
    retry_after: float = 3.5
    silent: bool = False
    """Whether no call is ever answered."""
    stuck: set[str] = field(default_factory=set[str])
    """Users whose messages are never answered."""
    script: "deque[Fate]" = field(default_factory=deque[Fate])
    """Played first, one for each call."""
    messages: list[Message] = field(default_factory=list[Message])
    requests: list[Request] = field(default_factory=list[Request])
    most_at_once: int = 0
    """The most calls that were under way at the same time."""
    url: str = ""
    _ids: Any = field(default_factory=lambda: count(1_000_000))
    _dms: dict[str, str] = field(default_factory=dict[str, str])
    _nonces: dict[str, Message] = field(default_factory=dict[str, Message])
    _spent: Counter[str] = field(default_factory=Counter[str])
    _under_way: int = 0
    _tasks: set["asyncio.Task[None]"] = field(default_factory=set["asyncio.Task[None]"])

    def said_to(self, user: str) -> list[Message]:
        return [each for each in self.messages if each.channel == self._dms.get(user)]

    def said_in(self, channel: str) -> list[Message]:
        return [each for each in self.messages if each.channel == channel]

    @property
    def opened(self) -> int:
        """How often somebody asked for a DM channel."""
        return sum(each.target.endswith("/users/@me/channels") for each in self.requests)

    @property
    def refused(self) -> int:
        """Calls that were over a limit: too many of these, and the real one shuts the door."""
        return self._spent["refused"]

    def dm_of(self, user: str) -> str:
        return self._dms.setdefault(user, str(next(self._ids)))

    def refill(self) -> None:
        self._spent.clear()

    def forget_nonces(self) -> None:
        self._nonces.clear()

    def delete_channel(self, user: str) -> None:
        """As when Discord has lost a DM channel: the user has another the next time one is opened."""
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
                    if not await self.met(request, reader, writer):
                        break
        finally:
            writer.close()
            self._tasks.discard(task)

    async def met(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        self._under_way += 1
        self.most_at_once = max(self.most_at_once, self._under_way)
        try:
            await asyncio.sleep(0)  # whoever else calls now is here at the same time
            return await self.fate_of(request)(reader, writer)
        finally:
            self._under_way -= 1

    def fate_of(self, request: Request) -> Mood:
        fate = self.script.popleft() if self.script else None
        if self.silent or any(f"/{self._dms.get(user)}/" in request.target for user in self.stuck):
            return hangs
        if fate is None:
            return self.answer(request)
        if fate.accepted:
            self.answer(request)
        return fate.mood

    def answer(self, request: Request) -> Mood:
        """What the API says to a call, with everything it counts."""
        if request.headers.get("authorization") != f"Bot {TOKEN}":
            return error(401, 0, "401: Unauthorized")
        self._spent["everywhere"] += 1
        if self._spent["everywhere"] > self.everywhere:
            return self.limited(everywhere=True)
        body: dict[str, Any] = json.loads(request.body)
        path = request.target.removeprefix("/api/v10")
        if path == "/users/@me/channels":
            return self.open(body["recipient_id"])
        channel = path.removeprefix("/channels/").removesuffix("/messages")
        if channel not in self.guild and channel not in self._dms.values():
            return error(404, 10003, "Unknown Channel")
        self._spent[channel] += 1
        if self._spent[channel] > self.per_channel:
            return self.limited(everywhere=False)
        return self.say(channel, body)

    def open(self, user: str) -> Mood:
        if user in self.strangers:
            return error(400, 50033, "Invalid Recipient(s)")
        return reply(200, {"id": self.dm_of(user), "type": 1})

    def say(self, channel: str, body: dict[str, Any]) -> Mood:
        nonce = body.get("nonce")
        if nonce is not None and len(nonce) > LONGEST_NONCE:
            return error(400, 50035, "Invalid Form Body")
        if {user for user, dm in self._dms.items() if dm == channel} & self.closed:
            return error(403, 50007, "Cannot send messages to this user")
        known = self._nonces.get(nonce) if nonce and body.get("enforce_nonce") else None
        message = known or Message(str(next(self._ids)), channel, nonce, body)
        if known is None:
            self.messages.append(message)
            if nonce:
                self._nonces[nonce] = message
        left = self.per_channel - self._spent[channel]
        headers = {
            "x-ratelimit-bucket": "a1b2c3",
            "x-ratelimit-limit": str(self.per_channel),
            "x-ratelimit-remaining": str(left),
            "x-ratelimit-reset-after": str(self.retry_after),
        }
        return reply(200, {"id": message.id, "channel_id": channel, "nonce": nonce}, headers)

    def limited(self, *, everywhere: bool) -> Mood:
        self._spent["refused"] += 1
        said = {"message": "You are being rate limited.", "retry_after": self.retry_after, "global": everywhere}
        headers = {
            "retry-after": str(int(self.retry_after) + 1),
            "x-ratelimit-scope": "global" if everywhere else "user",
        }
        return reply(429, said, headers | ({"x-ratelimit-global": "true"} if everywhere else {}))

    async def leave(self) -> None:
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def reply(status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> Mood:
    return answers(status, json.dumps(body).encode(), {"content-type": "application/json"} | (headers or {}))


def error(status: int, code: int, message: str) -> Mood:
    return reply(status, {"message": message, "code": code})


@asynccontextmanager
async def discord(*channels: str) -> AsyncGenerator[Discord]:
    """A Discord on a free port, with these channels in its guild."""
    there = Discord({*channels})
    server = await asyncio.start_server(there.serve, "127.0.0.1", 0)
    there.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/api/v10"
    try:
        yield there
    finally:
        server.close()
        await there.leave()
        await server.wait_closed()
