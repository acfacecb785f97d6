"""Follow messages live: as they arrive, are delivered, are answered and end."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal
from uuid import UUID

from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.relay.messages import InboundMessage, ReplyState, find_messages

Q = load_queries(__file__)

COMMIT_SLACK = timedelta(seconds=5)
"""How far each poll goes back beyond the previous one: `ended_at` is the time at which its transaction began."""
REPLY_WAIT = timedelta(minutes=30)
"""How long a reply may follow the acknowledgement of a message."""
MAX_FOLLOWED_MESSAGES = 1000
"""Messages that are followed at once; the oldest are dropped first."""
FINAL_REPLY_STATES: frozenset[ReplyState | Literal["shown"]] = frozenset({"sent", "refused", "unknown", "shown"})


@dataclass(frozen=True, slots=True)
class MessageChange:
    """A new message, or one that changed since the previous poll."""

    kind: Literal["came", "changed"]
    message: InboundMessage


class MessageFollower:
    """What one follower has seen so far: of an account, of a conversation, or of all messages."""

    def __init__(self, account: UUID | None = None, conversation: str | None = None) -> None:
        self._filter = {"account": account, "conversation": conversation}
        self._account = account
        self._seen: dict[UUID, InboundMessage] = {}
        self._started_at = self._polled_at = datetime.max.replace(tzinfo=UTC)

    async def start(self, tx: Tx) -> None:
        """Start now. Existing messages are reported only when they change."""
        self._started_at = self._polled_at = await tx.value(Q.database_now)
        self._seen = {message.id: message for message in await self._load(tx)}

    async def poll(self, tx: Tx) -> list[MessageChange]:
        """Messages that arrived or changed since the previous poll."""
        now = await tx.value(Q.database_now)
        messages = await self._load(tx)
        changes = [change for message in messages if (change := self._compare(message))]
        self._polled_at = now
        self._seen = {message.id: message for message in messages if self._may_change(message)}
        return changes

    async def _load(self, tx: Tx) -> list[InboundMessage]:
        ids = dict.fromkeys(await tx.column(Q.list_open_ids, **self._filter, limit=MAX_FOLLOWED_MESSAGES))
        ids |= dict.fromkeys(
            await tx.column(
                Q.list_ended_ids, **self._filter, after=self._polled_at - COMMIT_SLACK, limit=MAX_FOLLOWED_MESSAGES
            )
        )
        unlisted = [message_id for message_id in self._seen if message_id not in ids]
        ids |= dict.fromkeys(unlisted[-MAX_FOLLOWED_MESSAGES:])
        return sorted(await find_messages(tx, [*ids], self._account), key=lambda message: message.seq)

    def _compare(self, message: InboundMessage) -> MessageChange | None:
        previous = self._seen.get(message.id)
        if previous is None:
            is_new = message.created_at > self._started_at - COMMIT_SLACK
            return MessageChange("came" if is_new else "changed", message) if is_new or message.ended_at else None
        return MessageChange("changed", message) if message_stage(previous) != message_stage(message) else None

    def _may_change(self, message: InboundMessage) -> bool:
        """Whether it can still change, or a later poll can list it again."""
        if message.ended_at is None or message.ended_at > self._polled_at - COMMIT_SLACK:
            return True
        may_get_reply = message.reply not in FINAL_REPLY_STATES and (
            message.status == "ACKED" or message.reply is not None
        )
        return may_get_reply and message.ended_at > self._polled_at - REPLY_WAIT


def message_stage(message: InboundMessage) -> tuple[object, ...]:
    return message.status, message.delivery_count, message.reason, message.reply
