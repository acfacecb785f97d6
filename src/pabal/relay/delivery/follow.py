"""Tail: follow messages as they come, are handed out, answered, and end."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal
from uuid import UUID

from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.relay.messages import InboundMessage, find_messages

Q = load_queries(__file__)

COMMIT_SLACK = timedelta(seconds=5)
"""How far every look goes back: an end is dated when its transaction began."""
REPLY_WAIT = timedelta(minutes=30)
"""How long an answer is waited for of what was acknowledged without one."""
MAX_FOLLOWED_MESSAGES = 1000
"""Messages that are looked at; beyond that the oldest are let go."""
FINAL_REPLY_STATES = frozenset({"sent", "refused", "unknown", "shown"})


@dataclass(frozen=True, slots=True)
class MessageChange:
    """A message that came, or with which something has happened since."""

    kind: Literal["came", "changed"]
    message: InboundMessage


class MessageFollower:
    """What one follower has seen so far: of one account or conversation, or of all."""

    def __init__(self, account: UUID | None = None, conversation: str | None = None) -> None:
        self._filter = {"account": account, "conversation": conversation}
        self._account = account
        self._seen: dict[UUID, InboundMessage] = {}
        self._began = self._last = datetime.max.replace(tzinfo=UTC)

    async def start(self, tx: Tx) -> None:
        """From here on: what is there already is not told of, but what becomes of it will be."""
        self._began = self._last = await tx.value(Q.database_now)
        self._seen = {message.id: message for message in await self._load(tx)}

    async def poll(self, tx: Tx) -> list[MessageChange]:
        """What came and what changed since the last look."""
        now = await tx.value(Q.database_now)
        there = await self._load(tx)
        told = [sighting for message in there if (sighting := self._compare(message))]
        self._last = now
        self._seen = {message.id: message for message in there if self._may_change(message)}
        return told

    async def _load(self, tx: Tx) -> list[InboundMessage]:
        ids = dict.fromkeys(await tx.column(Q.list_open_ids, **self._filter, limit=MAX_FOLLOWED_MESSAGES))
        ids |= dict.fromkeys(
            await tx.column(
                Q.list_ended_ids, **self._filter, after=self._last - COMMIT_SLACK, limit=MAX_FOLLOWED_MESSAGES
            )
        )
        ids |= dict.fromkeys([each for each in self._seen if each not in ids][-MAX_FOLLOWED_MESSAGES:])
        return sorted(await find_messages(tx, [*ids], self._account), key=lambda message: message.seq)

    def _compare(self, message: InboundMessage) -> MessageChange | None:
        before = self._seen.get(message.id)
        if before is None:
            is_new = message.created_at > self._began - COMMIT_SLACK
            return MessageChange("came" if is_new else "changed", message) if is_new or message.ended_at else None
        return MessageChange("changed", message) if message_stage(before) != message_stage(message) else None

    def _may_change(self, message: InboundMessage) -> bool:
        """What may change yet, or may come into sight once more."""
        if message.ended_at is None or message.ended_at > self._last - COMMIT_SLACK:
            return True
        awaited = message.reply not in FINAL_REPLY_STATES and (message.status == "ACKED" or message.reply is not None)
        return awaited and message.ended_at > self._last - REPLY_WAIT


def message_stage(message: InboundMessage) -> tuple[object, ...]:
    return message.status, message.delivery_count, message.reason, message.reply
