"""A message's story, from the webhook to the callback, under whatever name somebody has of it."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from pabal.core.ids import id_prefix_range
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.relay.messages import InboundMessage, MessageFilter, MessageReply, find_message, list_messages
from pabal.relay.moments import MessageTraceEntry, ShownLateReply, message_trace_entries

Q = load_queries(__file__)

MAX_MESSAGE_MATCHES = 6
MAX_RECENT_MESSAGES = 20
"""Messages of a conversation that are told of, the newest."""


@dataclass(frozen=True, slots=True)
class MessageMatch:
    """Something whose id was meant: its kind, and the message it is about."""

    matched_id: UUID
    message_id: UUID
    kind: str


@dataclass(frozen=True, slots=True)
class MessageTrace:
    """What became of one message, or how the newest of a conversation stand. `now` is the database's time."""

    subject: str
    kind: str
    now: datetime
    messages: list[InboundMessage]
    reply: MessageReply | None
    entries: list[MessageTraceEntry]


async def find_message_matches(tx: Tx, prefix: str, account: UUID | None = None) -> dict[UUID, MessageMatch]:
    """Every message and reply whose id begins so; nothing for what cannot be the beginning of an id."""
    span = id_prefix_range(prefix)
    if span is None:
        return {}
    low, high = span
    found = await tx.all(
        MessageMatch, Q.find_message_matches, low=low, high=high, account=account, limit=MAX_MESSAGE_MATCHES
    )
    return {each.matched_id: each for each in found}


async def trace_message(tx: Tx, candidate: MessageMatch, account: UUID | None = None) -> MessageTrace:
    """Tell the story of a message, or of the message a reply answers."""
    whole = await find_message(tx, candidate.message_id, account)
    carried = await tx.all(ShownLateReply, Q.list_shown_late_replies, id=candidate.message_id, account=account)
    now = await tx.value(Q.database_now)
    moments = message_trace_entries(whole.message, whole.reply, carried, now)
    return MessageTrace(str(candidate.matched_id), candidate.kind, now, [whole.message], whole.reply, moments)


async def trace_conversation(tx: Tx, key: str, account: UUID | None = None) -> MessageTrace | None:
    """The newest messages of a conversation; None where there is no such conversation."""
    if not await tx.value(Q.conversation_exists, conversation=key, account=account):
        return None
    page = await list_messages(tx, MessageFilter(account, key), MAX_RECENT_MESSAGES)
    return MessageTrace(key, "conversation", await tx.value(Q.database_now), page.items, None, [])
