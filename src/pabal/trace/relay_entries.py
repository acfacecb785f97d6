"""The timeline of a relay message and its reply. Pure functions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from pabal.core.messages import Message, duration_message, message_table
from pabal.relay.messages import MESSAGE_STATUSES, InboundMessage, MessageReply
from pabal.trace.entry import TraceEntry, TraceEntryKind, sort_entries


@dataclass(frozen=True, slots=True)
class ShownLateReply:
    """A late reply to an earlier message that was shown before the reply to this one."""

    message_id: UUID
    shown_at: datetime


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
) -> list[TraceEntry]:
    """The timeline of a message."""
    entries = [*message_entries(message, reply)]
    if reply:
        entries += reply_entries(message, reply, now)
    for shown in shown_late_replies:
        text = Message("the late reply to {} is shown before the reply", shown.message_id)
        entries.append(TraceEntry(shown.shown_at, "carried", text))
    return sort_entries(entries)


def message_entries(message: InboundMessage, reply: MessageReply | None) -> Iterator[TraceEntry]:
    text = Message("accepted from {}, without a callback", message.conversation_key)
    if message.callback_expires_at:
        text = Message("accepted from {}, with a callback", message.conversation_key)
    yield TraceEntry(message.created_at, "accepted", text)
    if message.delivered_at:
        deliveries, holder = message.delivery_count, holder_text(message.held_by)
        text = Message("delivered to {}", holder)
        if deliveries > 1:
            text = Message("delivered {} times, last to {}", deliveries, holder)
        yield TraceEntry(message.delivered_at, "handed", text, message.held_by)
    if message.acked_at and (reply is None or reply.answered_at != message.acked_at):
        yield TraceEntry(message.acked_at, "acked", Message("acknowledged by the account"))
    if message.ended_at is None:
        return
    if message.status == "EXPIRED":
        text = Message("expired before it was delivered")
        if message.delivery_count:
            text = Message("expired: delivered but never answered")
        yield TraceEntry(message.ended_at, "expired", text)
    elif message.status == "CANCELLED":
        reason = message.reason or ""
        yield TraceEntry(
            message.ended_at, "cancelled", Message("cancelled: {}", CANCEL_REASON_TEXTS.get(reason, reason))
        )


def reply_entries(message: InboundMessage, reply: MessageReply, now: datetime) -> Iterator[TraceEntry]:
    if reply.spent_by == "hub" and reply.spent_at:
        text = Message("no reply yet: the hub uses the callback for a waiting message")
        yield TraceEntry(reply.spent_at, "stalled", text, "hub")
    if reply.answered_at:
        yield reply_answered_entry(message, reply, reply.answered_at)
    if reply.settled_at and reply.spent_at:
        took = reply.settled_at - reply.spent_at
        yield TraceEntry(reply.settled_at, callback_entry_kind(reply), callback_outcome_text(reply), "kakao", took)
    if reply.shown_at:
        text = Message("shown before the next reply")
        if reply.shown_with:
            text = Message("shown before the reply to {}", reply.shown_with)
        yield TraceEntry(reply.shown_at, "shown", text)
    elif reply.kept_until and reply.kept_until <= now:
        yield TraceEntry(reply.kept_until, "unseen", Message("discarded: the user did not write again in time"))


def reply_answered_entry(message: InboundMessage, reply: MessageReply, at: datetime) -> TraceEntry:
    if reply.in_webhook:
        return TraceEntry(at, "answered", Message("replied in the webhook's response: reply {}", reply.id), "agent")
    if reply.spent_by == "agent":
        return TraceEntry(at, "answered", Message("replied through the callback: reply {}", reply.id), "agent")
    if message.status == "EXPIRED" and not message.delivery_count:
        return TraceEntry(at, "late", Message("the user will be told before the next reply"), "hub")
    text = Message("replied too late for the callback; stored as reply {}", reply.id)
    if reply.error and reply.spent_by is None:
        text = Message("replied, but Kakao could not be reached ({}); stored as reply {}", reply.error, reply.id)
    return TraceEntry(at, "late", text, "agent")


def callback_entry_kind(reply: MessageReply) -> TraceEntryKind:
    match reply.outcome:
        case "sent" | "refused":
            return reply.outcome
        case _:
            return "unknown"


def callback_outcome_text(reply: MessageReply) -> Message:
    """What became of the callback. A whole sentence for each case: a translation inflects what Kakao received."""
    response = " ".join(str(part) for part in (reply.status_code, kakao_response_text(reply)) if part)
    if reply.spent_by == "hub":
        return waiting_message_text(reply, response)
    match reply.outcome:
        case "sent":
            return (
                Message("Kakao accepted the reply: {}", response) if response else Message("Kakao accepted the reply")
            )
        case "refused":
            return Message("Kakao rejected the reply: {}", reply.error or response)
        case _:
            return Message("unknown whether Kakao accepted the reply: {}", reply.error or response)


def waiting_message_text(reply: MessageReply, response: str) -> Message:
    match reply.outcome:
        case "sent" if response:
            return Message("Kakao accepted the hub's waiting message: {}", response)
        case "sent":
            return Message("Kakao accepted the hub's waiting message")
        case "refused":
            return Message("Kakao rejected the hub's waiting message: {}", reply.error or response)
        case _:
            return Message("unknown whether Kakao accepted the hub's waiting message: {}", reply.error or response)


def kakao_response_text(reply: MessageReply) -> str:
    response = reply.kakao or {}
    return ", ".join(str(response[name]) for name in ("status", "message", "taskId") if response.get(name))


def holder_text(held_by: str | None) -> str:
    """Describe a holder: `stream:`, `parked:` or `closed:<token>:<stream>`, or `poll:<token>`."""
    kind, _, rest = (held_by or "").partition(":")
    token, _, stream = rest.partition(":")
    match kind:
        case "stream":
            return Message("stream {} of {}", stream, token)
        case "closed":
            return Message("stream {} of {}, closed since", stream, token)
        case "parked":
            return Message("stream {} of {}, replaced since", stream, token)
        case "poll":
            return Message("a poller of {}", token)
        case _:
            return held_by or Message("the account")


def message_status_text(message: InboundMessage, now: datetime) -> Message:
    """The current state of a message in a few words."""
    is_over, remaining = message.expires_at <= now, duration_message(message.expires_at - now)
    status, holder = MESSAGE_STATUS_TEXTS[message.status], holder_text(message.held_by)
    match message.status:
        case "QUEUED":
            return Message("{}, expired", status) if is_over else Message("{}, expires in {}", status, remaining)
        case "DELIVERED" if message.leased_until and message.leased_until > now:
            return Message(
                "{}, held by {}; the lease ends in {}", status, holder, duration_message(message.leased_until - now)
            )
        case "DELIVERED" if is_over:
            return Message("{} to {}, lease ended; expired", status, holder)
        case "DELIVERED":
            return Message("{} to {}, lease ended; expires in {}", status, holder, remaining)
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
