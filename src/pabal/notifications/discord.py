"""The line to Discord: who may speak when, and what every worker learns from each answer.

Discord counts by route and over everything. What it says about either is kept in the limits all processes share, so one
worker's 429 makes them all wait; what waits for it goes back to the lane, and spends nothing.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from pabal import limits
from pabal.core.errors import PabalError, TooMany
from pabal.core.log import get_logger
from pabal.db.pool import Database
from pabal.db.tx import Tx
from pabal.limits import Limit
from pabal.notifications import addresses
from pabal.notifications.alias import alias
from pabal.notifications.plan import Channel
from pabal.notifications.settle import Sent
from pabal.queue.outcome import DONE, Dead, Outcome, Retry, Snooze

log = get_logger()

AWAY = timedelta(seconds=1)
PACE = Limit("discord pace", 40, timedelta(seconds=1))
"""Discord takes fifty calls a second from a bot; what is left over is for emergencies, which do not wait."""
NEAR = timedelta(seconds=2)
"""How far ahead a place is worth waiting for with the request in hand."""
WHAT = "discord"
EVERYWHERE = "everywhere"
OPENING = "opening"


@dataclass(frozen=True, slots=True)
class Note:
    """A notice as it goes out. `nonce` is what Discord tells a repeat by."""

    channel: Channel
    recipient: str
    dm_channel: str | None
    title: str | None
    body: str = field(repr=False)
    nonce: str
    urgent: bool
    unhealthy: bool
    """Whether the address refused us the last time: then taking this heals it."""


class Answer(Protocol):
    """What became of a call, and what follows from it for the next ones."""

    @property
    def outcome(self) -> Outcome: ...
    @property
    def id(self) -> str | None: ...
    @property
    def quiet(self) -> timedelta | None: ...
    @property
    def everywhere(self) -> bool: ...
    @property
    def gone(self) -> bool: ...
    @property
    def missing(self) -> bool: ...


class Speaker(Protocol):
    """Makes the calls. How is none of our business."""

    async def open(self, user: str) -> Answer: ...
    async def say(self, channel: str, *, title: str | None, body: str, nonce: str, urgent: bool) -> Answer: ...


class Outlet(Protocol):
    """Where notices for Discord go."""

    async def send(self, note: Note) -> Outcome: ...


class DryRun:
    """A hub without a token: what would be sent is written down instead."""

    async def send(self, note: Note) -> Outcome:
        log.info("discord dry", channel=note.channel, recipient=alias(note.recipient), nonce=note.nonce)
        return Sent({"dry_run": True})


class Discord:
    """The line of one process. Calls on one route are made one after the other, as Discord counts them."""

    def __init__(self, db: Database, speaker: Speaker) -> None:
        self._db = db
        self._speaker = speaker
        self._routes: dict[str, tuple[asyncio.Lock, int]] = {}

    async def send(self, note: Note) -> Outcome:
        if note.channel is not Channel.USER_DM:
            return await self._say(note, note.recipient)
        if note.dm_channel is not None:
            return await self._say(note, note.dm_channel)
        opened = await self._open(note)
        return await self._say(note, opened) if isinstance(opened, str) else opened

    async def _open(self, note: Note) -> str | Outcome:
        """The user's DM channel, or what becomes of the note without one."""
        async with self._route(OPENING):
            if wait := await self._wait(OPENING, urgent=note.urgent):
                return wait
            answer = await self._speaker.open(note.recipient)
            await self._learn(OPENING, note, answer)
        if answer.outcome != DONE or answer.id is None:
            return answer.outcome
        async with self._remembering() as tx:
            await addresses.opened(tx, note.recipient, answer.id)
        return answer.id

    async def _say(self, note: Note, to: str) -> Outcome:
        route = f"channel {to}"
        async with self._route(route):
            if wait := await self._wait(route, urgent=note.urgent):
                return wait
            answer = await self._speaker.say(to, title=note.title, body=note.body, nonce=note.nonce, urgent=note.urgent)
            if answer.missing and to == note.dm_channel:  # the channel is gone, which says nothing of the person
                async with self._remembering() as tx:
                    await addresses.closed(tx, note.recipient, to)
                return Retry("the DM channel was gone; another is opened", after=timedelta())
            await self._learn(route, note, answer)
        if answer.outcome != DONE:
            return answer.outcome
        if note.unhealthy:
            async with self._remembering() as tx:
                await addresses.took(tx, note.channel, note.recipient)
        return Sent({"channel_id": to} | ({} if answer.id is None else {"message_id": answer.id}))

    async def _wait(self, route: str, *, urgent: bool) -> Snooze | None:
        """Wait for a near place in the queue to Discord; a far one is waited for in the lane."""
        async with self._db.autocommit() as tx:
            if (held := await limits.held(tx, WHAT, [EVERYWHERE, route])) > timedelta():
                return Snooze("Discord wants us to wait", held)
            if urgent:
                return None
            try:
                ahead = await limits.reserve(tx, PACE, "all", NEAR)
            except TooMany as full:
                return Snooze("too many are waiting for Discord", full.retry_after)
        await asyncio.sleep(ahead.total_seconds())
        return None

    async def _learn(self, route: str, note: Note, answer: Answer) -> None:
        """Tell every worker what the answer said about the next calls."""
        async with self._remembering() as tx:
            if answer.quiet is not None:
                await limits.hold(tx, WHAT, EVERYWHERE if answer.everywhere else route, answer.quiet)
            if answer.gone and isinstance(answer.outcome, Dead):
                why = answer.outcome.why
                if await addresses.refused(tx, note.channel, note.recipient, why):
                    log.warning("address refuses", channel=note.channel, recipient=alias(note.recipient), why=why)

    @asynccontextmanager
    async def _remembering(self) -> AsyncGenerator[Tx]:
        """It was said or not, whatever we can write down of it."""
        try:
            async with self._db.autocommit() as tx:
                yield tx
        except PabalError as error:
            log.warning("discord unwritten", why=str(error))

    @asynccontextmanager
    async def _route(self, name: str) -> AsyncGenerator[None]:
        lock, users = self._routes.get(name) or (asyncio.Lock(), 0)
        self._routes[name] = lock, users + 1
        try:
            async with lock:
                yield
        finally:
            lock, users = self._routes.pop(name)
            if users > 1:
                self._routes[name] = lock, users - 1
