"""The trace of relay messages, from the webhook to the callback."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.relay.messages import InboundMessage, MessageFilter, MessageReply, find_message, list_messages
from pabal.trace.entry import TraceEntry, TraceMatch, TraceSubjectKind, find_matches, read_trace_time
from pabal.trace.relay_entries import ShownLateReply, message_trace_entries

Q = load_queries(__file__)

MAX_RECENT_MESSAGES = 20
"""Messages in the trace of a conversation, newest first."""


@dataclass(frozen=True, slots=True)
class MessageTrace:
    """The trace of one message, or the newest messages of a conversation. `now` is the database's time."""

    subject: str
    kind: TraceSubjectKind
    now: datetime
    messages: list[InboundMessage]
    reply: MessageReply | None
    entries: list[TraceEntry]


async def find_message_matches(tx: Tx, prefix: str, account: UUID | None = None) -> dict[UUID, TraceMatch]:
    """The messages and replies with this id, prefix or short id."""
    return await find_matches(tx, Q.find_message_matches, prefix, account=account)


async def trace_message(tx: Tx, match: TraceMatch, account: UUID | None = None) -> MessageTrace:
    """Trace a message, or the message that a reply answers."""
    details = await find_message(tx, match.subject_id, account)
    shown = await tx.all(ShownLateReply, Q.list_shown_late_replies, id=match.subject_id, account=account)
    now = await read_trace_time(tx)
    entries = message_trace_entries(details.message, details.reply, shown, now)
    return MessageTrace(str(match.id), match.kind, now, [details.message], details.reply, entries)


async def trace_conversation(tx: Tx, key: str, account: UUID | None = None) -> MessageTrace | None:
    """The newest messages of a conversation; None if there is no such conversation."""
    if not await tx.value(Q.conversation_exists, conversation=key, account=account):
        return None
    page = await list_messages(tx, MessageFilter(account, key), MAX_RECENT_MESSAGES)
    return MessageTrace(key, "conversation", await read_trace_time(tx), page.items, None, [])
