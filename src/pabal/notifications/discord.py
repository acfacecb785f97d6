"""The line to Discord: a note becomes one or two calls, and every worker learns from each answer."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol
from uuid import UUID

from pabal.core.errors import PabalError
from pabal.core.log import get_logger
from pabal.db.pool import Database
from pabal.db.tx import Tx
from pabal.notifications import addresses
from pabal.notifications.alias import alias
from pabal.notifications.plan import Channel
from pabal.notifications.settle import Sent
from pabal.notifications.turns import EVERYWHERE, Turns
from pabal.queue.outcome import DONE, Dead, Outcome, Retry, Snooze

log = get_logger()

OPENING = "opening"


@dataclass(frozen=True, slots=True)
class Note:
    """A notice as it goes out. `nonce` is what Discord tells a repeat by."""

    request: UUID
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
    """Where notices for Discord go. While it `is_quiet` there is no use in bringing any."""

    async def send(self, note: Note) -> Outcome: ...
    async def is_quiet(self) -> bool: ...


class DryRun:
    """A hub without a token: what would be sent is written down instead."""

    async def send(self, note: Note) -> Outcome:
        log.info("discord dry", channel=note.channel, recipient=alias(note.recipient), nonce=note.nonce)
        return Sent({"dry_run": True})

    async def is_quiet(self) -> bool:
        return False


class Discord:
    """The line of one process."""

    def __init__(self, db: Database, speaker: Speaker) -> None:
        self._db = db
        self._speaker = speaker
        self._turns = Turns(db)

    async def is_quiet(self) -> bool:
        return await self._turns.is_quiet()

    async def send(self, note: Note) -> Outcome:
        if note.channel is not Channel.USER_DM:
            return await self._say(note, note.recipient)
        if note.dm_channel is not None:
            return await self._say(note, note.dm_channel)
        opened = await self._open(note)
        return await self._say(note, opened) if isinstance(opened, str) else opened

    async def _open(self, note: Note) -> str | Outcome:
        """The user's DM channel, or what becomes of the note without one."""
        async with self._turns.take(OPENING, urgent=note.urgent) as not_now:
            if not_now:
                return not_now
            answer = await self._speaker.open(note.recipient)
            await self._learn(OPENING, note, answer)
        if answer.outcome != DONE or answer.id is None:
            return answer.outcome
        async with self._remembering() as tx:
            await addresses.opened(tx, note.request, answer.id)
        return answer.id

    async def _say(self, note: Note, to: str) -> Outcome:
        route = f"channel {to}"
        async with self._turns.take(route, urgent=note.urgent) as not_now:
            if not_now:
                return not_now
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

    async def _learn(self, route: str, note: Note, answer: Answer) -> None:
        """Tell every worker what the answer said about the next calls."""
        if answer.everywhere and isinstance(answer.outcome, Snooze):
            log.warning("discord quiet", why=answer.outcome.why, seconds=answer.outcome.after.total_seconds())
        async with self._remembering() as tx:
            if answer.quiet is not None:
                await self._turns.hold(tx, EVERYWHERE if answer.everywhere else route, answer.quiet)
            if answer.gone and isinstance(answer.outcome, Dead):
                why = answer.outcome.why
                if await addresses.refused(tx, note.request, why):
                    log.warning("address refuses", channel=note.channel, recipient=alias(note.recipient), why=why)

    @asynccontextmanager
    async def _remembering(self) -> AsyncGenerator[Tx]:
        """It was said or not, whatever we can write down of it."""
        try:
            async with self._db.autocommit() as tx:
                yield tx
        except PabalError as error:
            log.warning("discord unwritten", why=str(error))
