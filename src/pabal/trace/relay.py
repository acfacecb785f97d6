"""A message's story, from the webhook to the callback, under whatever name somebody has of it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from pabal.core.ids import id_prefix_range
from pabal.core.messages import Message, duration_message, message_table
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.relay.messages import (
    MESSAGE_STATUSES,
    InboundMessage,
    MessageFilter,
    MessageReply,
    find_message,
    list_messages,
)


@dataclass(frozen=True, slots=True)
class ShownLateReply:
    """A late answer that was shown in front of another's."""

    message_id: UUID
    shown_at: datetime


@dataclass(frozen=True, slots=True)
class MessageTraceEntry:
    """Something that happened. `took` is how long Kakao needed, where that is known."""

    at: datetime
    kind: str
    says: str
    by: str | None = None
    took: timedelta | None = None


CANCEL_REASON_TEXTS = {
    "unpaired": Message("the conversation was unpaired"),
    "replaced": Message("the conversation was paired with another account"),
    "blocked": Message("the conversation was blocked"),
    "disabled": Message("the account was disabled"),
    "erased": Message("the conversation was erased"),
}
MESSAGE_STATUS_TEXTS = message_table(*MESSAGE_STATUSES)
MESSAGE_END_REASON_TEXTS = message_table(
    "queue_life", "unpaired", "replaced", "blocked", "disabled", "erased", "cancelled"
)
REPLY_STATE_TEXTS = message_table("sending", "sent", "refused", "unknown", "late", "shown", "awaited")


def message_trace_entries(
    message: InboundMessage, reply: MessageReply | None, shown_late_replies: Sequence[ShownLateReply], now: datetime
) -> list[MessageTraceEntry]:
    """Everything that happened to a message, the first first."""
    moments = [*message_entries(message, reply)]
    if reply:
        moments += reply_entries(message, reply, now)
    for each in shown_late_replies:
        says = Message("the late answer to {} is put in front of its own", each.message_id)
        moments.append(MessageTraceEntry(each.shown_at, "carried", says))
    return sorted(moments, key=lambda moment: moment.at)  # one after the other as told, where the time is the same


def message_entries(message: InboundMessage, reply: MessageReply | None) -> Iterator[MessageTraceEntry]:
    whence = message.conversation_key
    accepted = Message("accepted from {}, without a callback", whence)
    if message.callback_expires_at:
        accepted = Message("accepted from {}, with a callback", whence)
    yield MessageTraceEntry(message.created_at, "accepted", accepted)
    if message.delivered_at:
        often, holder = message.delivery_count, holder_text(message.held_by)
        handed = Message("handed out to {}", holder)
        if often > 1:
            handed = Message("handed out {} times, the last time to {}", often, holder)
        yield MessageTraceEntry(message.delivered_at, "handed", handed, message.held_by)
    if message.acked_at and (reply is None or reply.answered_at != message.acked_at):
        yield MessageTraceEntry(message.acked_at, "acked", Message("acknowledged by its account"))
    if message.ended_at is None:
        return
    if message.status == "EXPIRED":
        expired = Message("expired: nobody fetched it in time")
        if message.delivery_count:
            expired = Message("expired: handed out, but never answered")
        yield MessageTraceEntry(message.ended_at, "expired", expired)
    elif message.status == "CANCELLED":
        reason = message.reason or ""
        yield MessageTraceEntry(
            message.ended_at, "cancelled", Message("cancelled: {}", CANCEL_REASON_TEXTS.get(reason, reason))
        )


def reply_entries(message: InboundMessage, reply: MessageReply, now: datetime) -> Iterator[MessageTraceEntry]:
    if reply.spent_by == "hub" and reply.spent_at:
        stalled = Message("no answer yet: the hub takes the callback for a short text of its own")
        yield MessageTraceEntry(reply.spent_at, "stalled", stalled, "hub")
    if reply.answered_at:
        yield reply_answered_entry(message, reply, reply.answered_at)
    if reply.settled_at and reply.spent_at:
        took = reply.settled_at - reply.spent_at
        yield MessageTraceEntry(reply.settled_at, reply.outcome or "", callback_outcome_text(reply), "kakao", took)
    if reply.shown_at:
        shown = Message("shown in front of the answer")
        if reply.shown_with:
            shown = Message("shown in front of the answer to {}", reply.shown_with)
        yield MessageTraceEntry(reply.shown_at, "shown", shown)
    elif reply.kept_until and reply.kept_until <= now:
        yield MessageTraceEntry(
            reply.kept_until, "unseen", Message("no longer kept: the user did not write again in time")
        )


def reply_answered_entry(message: InboundMessage, reply: MessageReply, at: datetime) -> MessageTraceEntry:
    if reply.spent_by == "agent":
        return MessageTraceEntry(
            at, "answered", Message("answered; the callback is taken, as reply {}", reply.id), "agent"
        )
    if message.status == "EXPIRED" and not message.delivery_count:
        return MessageTraceEntry(at, "late", Message("the user is to be told so in front of the next answer"), "hub")
    says = Message("answered too late for the callback; kept as reply {}", reply.id)
    if reply.error and reply.spent_by is None:
        says = Message("answered, but Kakao was not reached ({}); kept as reply {}", reply.error, reply.id)
    return MessageTraceEntry(at, "late", says, "agent")


def callback_outcome_text(reply: MessageReply) -> Message:
    whose = Message("the hub's text") if reply.spent_by == "hub" else Message("the answer")
    said = " ".join(str(word) for word in (reply.status_code, kakao_response_text(reply)) if word)
    match reply.outcome:
        case "sent":
            return Message("Kakao took {}: {}", whose, said) if said else Message("Kakao took {}", whose)
        case "refused":
            return Message("Kakao refused {}: {}", whose, reply.error or said)
        case _:
            return Message("nobody knows whether Kakao took {}: {}", whose, reply.error or said)


def kakao_response_text(reply: MessageReply) -> str:
    said = reply.kakao or {}
    return ", ".join(str(said[name]) for name in ("status", "message", "taskId") if said.get(name))


def holder_text(held_by: str | None) -> str:
    """`stream:<token>:<stream>`, `closed:<token>:<stream>` or `poll:<token>`, in a person's words."""
    kind, _, rest = (held_by or "").partition(":")
    token, _, stream = rest.partition(":")
    match kind:
        case "stream":
            return Message("stream {} of {}", stream, token)
        case "closed":
            return Message("stream {} of {}, which has closed since", stream, token)
        case "poll":
            return Message("a poller of {}", token)
        case _:
            return held_by or Message("its account")


def message_status_text(message: InboundMessage, now: datetime) -> Message:
    """How it stands now, in a few words."""
    is_over, left = message.expires_at <= now, duration_message(message.expires_at - now)
    status, holder = MESSAGE_STATUS_TEXTS[message.status], holder_text(message.held_by)
    match message.status:
        case "QUEUED":
            return Message("{}, expired", status) if is_over else Message("{}, expires in {}", status, left)
        case "DELIVERED" if message.leased_until and message.leased_until > now:
            return Message(
                "{}, held by {}; the lease ends in {}", status, holder, duration_message(message.leased_until - now)
            )
        case "DELIVERED" if is_over:
            return Message("{} to {}, who let go of it; expired", status, holder)
        case "DELIVERED":
            return Message("{} to {}, who let go of it; expires in {}", status, holder, left)
        case "ACKED":
            reply = message.reply
            return (
                Message("{}, reply {}", status, REPLY_STATE_TEXTS.get(reply, reply))
                if reply
                else Message("{}, no reply", status)
            )
        case "EXPIRED" | "CANCELLED":
            reason = message.reason or ""
            return Message("{}, {}", status, MESSAGE_END_REASON_TEXTS.get(reason, reason))


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
