"""Moments: what the rows of a message and its reply tell, in words and in order. Nothing here asks the database."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from pabal.core.phrase import Phrase, lasting, words
from pabal.relay.messages import ALL, Message, Reply


@dataclass(frozen=True, slots=True)
class Carried:
    """A late answer that was shown in front of another's."""

    message_id: UUID
    shown_at: datetime


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened. `took` is how long Kakao needed, where that is known."""

    at: datetime
    kind: str
    says: str
    by: str | None = None
    took: timedelta | None = None


WHY = {
    "unpaired": Phrase("the conversation was unpaired"),
    "replaced": Phrase("the conversation was paired with another account"),
    "blocked": Phrase("the conversation was blocked"),
    "disabled": Phrase("the account was disabled"),
    "erased": Phrase("the conversation was erased"),
}
STATUSES = words(*ALL)
REASONS = words("queue_life", "unpaired", "replaced", "blocked", "disabled", "erased", "cancelled")
REPLIES = words("sending", "sent", "refused", "unknown", "late", "shown", "awaited")


def told(message: Message, reply: Reply | None, carried: Sequence[Carried], now: datetime) -> list[Moment]:
    """Everything that happened to a message, the first first."""
    moments = [*of_message(message, reply)]
    if reply:
        moments += of_reply(message, reply, now)
    for each in carried:
        says = Phrase("the late answer to {} is put in front of its own", each.message_id)
        moments.append(Moment(each.shown_at, "carried", says))
    return sorted(moments, key=lambda moment: moment.at)  # one after the other as told, where the time is the same


def of_message(message: Message, reply: Reply | None) -> Iterator[Moment]:
    whence = message.conversation_key
    accepted = Phrase("accepted from {}, without a callback", whence)
    if message.callback_expires_at:
        accepted = Phrase("accepted from {}, with a callback", whence)
    yield Moment(message.created_at, "accepted", accepted)
    if message.delivered_at:
        often, holder = message.delivery_count, holder_in_words(message.held_by)
        handed = Phrase("handed out to {}", holder)
        if often > 1:
            handed = Phrase("handed out {} times, the last time to {}", often, holder)
        yield Moment(message.delivered_at, "handed", handed, message.held_by)
    if message.acked_at and (reply is None or reply.answered_at != message.acked_at):
        yield Moment(message.acked_at, "acked", Phrase("acknowledged by its account"))
    if message.ended_at is None:
        return
    if message.status == "EXPIRED":
        expired = Phrase("expired: nobody fetched it in time")
        if message.delivery_count:
            expired = Phrase("expired: handed out, but never answered")
        yield Moment(message.ended_at, "expired", expired)
    elif message.status == "CANCELLED":
        reason = message.reason or ""
        yield Moment(message.ended_at, "cancelled", Phrase("cancelled: {}", WHY.get(reason, reason)))


def of_reply(message: Message, reply: Reply, now: datetime) -> Iterator[Moment]:
    if reply.spent_by == "hub" and reply.spent_at:
        stalled = Phrase("no answer yet: the hub takes the callback for a short text of its own")
        yield Moment(reply.spent_at, "stalled", stalled, "hub")
    if reply.answered_at:
        yield answered(message, reply, reply.answered_at)
    if reply.settled_at and reply.spent_at:
        took = reply.settled_at - reply.spent_at
        yield Moment(reply.settled_at, reply.outcome or "", settled(reply), "kakao", took)
    if reply.shown_at:
        shown = Phrase("shown in front of the answer")
        if reply.shown_with:
            shown = Phrase("shown in front of the answer to {}", reply.shown_with)
        yield Moment(reply.shown_at, "shown", shown)
    elif reply.kept_until and reply.kept_until <= now:
        yield Moment(reply.kept_until, "unseen", Phrase("no longer kept: the user did not write again in time"))


def answered(message: Message, reply: Reply, at: datetime) -> Moment:
    if reply.spent_by == "agent":
        return Moment(at, "answered", Phrase("answered; the callback is taken, as reply {}", reply.id), "agent")
    if message.status == "EXPIRED" and not message.delivery_count:
        return Moment(at, "late", Phrase("the user is to be told so in front of the next answer"), "hub")
    says = Phrase("answered too late for the callback; kept as reply {}", reply.id)
    if reply.error and reply.spent_by is None:
        says = Phrase("answered, but Kakao was not reached ({}); kept as reply {}", reply.error, reply.id)
    return Moment(at, "late", says, "agent")


def settled(reply: Reply) -> Phrase:
    whose = Phrase("the hub's text") if reply.spent_by == "hub" else Phrase("the answer")
    said = " ".join(str(word) for word in (reply.status_code, kakaos_words(reply)) if word)
    match reply.outcome:
        case "sent":
            return Phrase("Kakao took {}: {}", whose, said) if said else Phrase("Kakao took {}", whose)
        case "refused":
            return Phrase("Kakao refused {}: {}", whose, reply.error or said)
        case _:
            return Phrase("nobody knows whether Kakao took {}: {}", whose, reply.error or said)


def kakaos_words(reply: Reply) -> str:
    said = reply.kakao or {}
    return ", ".join(str(said[name]) for name in ("status", "message", "taskId") if said.get(name))


def holder_in_words(held_by: str | None) -> str:
    """`stream:<token>:<stream>`, `closed:<token>:<stream>` or `poll:<token>`, in a person's words."""
    kind, _, rest = (held_by or "").partition(":")
    token, _, stream = rest.partition(":")
    match kind:
        case "stream":
            return Phrase("stream {} of {}", stream, token)
        case "closed":
            return Phrase("stream {} of {}, which has closed since", stream, token)
        case "poll":
            return Phrase("a poller of {}", token)
        case _:
            return held_by or Phrase("its account")


def standing(message: Message, now: datetime) -> Phrase:
    """How it stands now, in a few words."""
    is_over, left = message.expires_at <= now, lasting(message.expires_at - now)
    status, holder = STATUSES[message.status], holder_in_words(message.held_by)
    match message.status:
        case "QUEUED":
            return Phrase("{}, expired", status) if is_over else Phrase("{}, expires in {}", status, left)
        case "DELIVERED" if message.leased_until and message.leased_until > now:
            return Phrase("{}, held by {}; the lease ends in {}", status, holder, lasting(message.leased_until - now))
        case "DELIVERED" if is_over:
            return Phrase("{} to {}, who let go of it; expired", status, holder)
        case "DELIVERED":
            return Phrase("{} to {}, who let go of it; expires in {}", status, holder, left)
        case "ACKED":
            reply = message.reply
            return (
                Phrase("{}, reply {}", status, REPLIES.get(reply, reply)) if reply else Phrase("{}, no reply", status)
            )
        case "EXPIRED" | "CANCELLED":
            reason = message.reason or ""
            return Phrase("{}, {}", status, REASONS.get(reason, reason))
