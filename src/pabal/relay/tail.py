"""Tail: follow messages as they come, are handed out, answered, and end."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal
from uuid import UUID

from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.relay.messages import Message, these

Q = beside(__file__)

SLACK = timedelta(seconds=5)
"""How far every look goes back: an end is dated when its transaction began."""
AWAITED = timedelta(minutes=30)
"""How long an answer is waited for of what was acknowledged without one."""
MOST = 1000
"""Messages that are looked at; beyond that the oldest are let go."""
FINAL = frozenset({"sent", "refused", "unknown", "shown"})


@dataclass(frozen=True, slots=True)
class Sighting:
    """A message that came, or with which something has happened since."""

    what: Literal["came", "changed"]
    message: Message


class Tail:
    """What one follower has seen so far: of one account or conversation, or of all."""

    def __init__(self, account: UUID | None = None, conversation: str | None = None) -> None:
        self._chosen = {"account": account, "conversation": conversation}
        self._account = account
        self._seen: dict[UUID, Message] = {}
        self._began = self._last = datetime.max.replace(tzinfo=UTC)

    async def begin(self, tx: Tx) -> None:
        """From here on: what is there already is not told of, but what becomes of it will be."""
        self._began = self._last = await tx.value(Q.now)
        self._seen = {message.id: message for message in await self._at_hand(tx)}

    async def look(self, tx: Tx) -> list[Sighting]:
        """What came and what changed since the last look."""
        now = await tx.value(Q.now)
        there = await self._at_hand(tx)
        told = [sighting for message in there if (sighting := self._sighted(message))]
        self._last = now
        self._seen = {message.id: message for message in there if self._matters(message)}
        return told

    async def _at_hand(self, tx: Tx) -> list[Message]:
        ids = dict.fromkeys(await tx.column(Q.open, **self._chosen, limit=MOST))
        ids |= dict.fromkeys(await tx.column(Q.ended, **self._chosen, after=self._last - SLACK, limit=MOST))
        ids |= dict.fromkeys([each for each in self._seen if each not in ids][-MOST:])
        return sorted(await these(tx, [*ids], self._account), key=lambda message: message.seq)

    def _sighted(self, message: Message) -> Sighting | None:
        before = self._seen.get(message.id)
        if before is None:
            is_new = message.created_at > self._began - SLACK
            return Sighting("came" if is_new else "changed", message) if is_new or message.ended_at else None
        return Sighting("changed", message) if stage(before) != stage(message) else None

    def _matters(self, message: Message) -> bool:
        """What may change yet, or may come into sight once more."""
        if message.ended_at is None or message.ended_at > self._last - SLACK:
            return True
        awaited = message.reply not in FINAL and (message.status == "ACKED" or message.reply is not None)
        return awaited and message.ended_at > self._last - AWAITED


def stage(message: Message) -> tuple[object, ...]:
    return message.status, message.delivery_count, message.reason, message.reply
