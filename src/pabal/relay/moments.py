"""Moments: what the rows of a message and its reply tell, in words and in order. Nothing here asks the database."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from pabal.relay.messages import Message, Reply


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
    "unpaired": "the conversation was unpaired",
    "replaced": "the conversation was paired with another account",
    "blocked": "the conversation was blocked",
    "disabled": "the account was disabled",
    "erased": "the conversation was erased",
}


def told(message: Message, reply: Reply | None, carried: Sequence[Carried], now: datetime) -> list[Moment]:
    """Everything that happened to a message, the first first."""
    moments = [*of_message(message, reply)]
    if reply:
        moments += of_reply(message, reply, now)
    for each in carried:
        moments.append(
            Moment(each.shown_at, "carried", f"the late answer to {each.message_id} is put in front of its own")
        )
    return sorted(moments, key=lambda moment: moment.at)  # one after the other as told, where the time is the same


def of_message(message: Message, reply: Reply | None) -> Iterator[Moment]:
    callback = "with a callback" if message.callback_expires_at else "without a callback"
    yield Moment(message.created_at, "accepted", f"accepted from {message.conversation_key}, {callback}")
    if message.delivered_at:
        often = (
            f"handed out {message.delivery_count} times, the last time" if message.delivery_count > 1 else "handed out"
        )
        holder = holder_in_words(message.held_by)
        yield Moment(message.delivered_at, "handed", f"{often} to {holder}", message.held_by)
    if message.acked_at and (reply is None or reply.answered_at != message.acked_at):
        yield Moment(message.acked_at, "acked", "acknowledged by its account")
    if message.ended_at is None:
        return
    if message.status == "EXPIRED":
        why = "handed out, but never answered" if message.delivery_count else "nobody fetched it in time"
        yield Moment(message.ended_at, "expired", f"expired: {why}")
    elif message.status == "CANCELLED":
        reason = message.reason or ""
        yield Moment(message.ended_at, "cancelled", f"cancelled: {WHY.get(reason, reason)}")


def of_reply(message: Message, reply: Reply, now: datetime) -> Iterator[Moment]:
    if reply.spent_by == "hub" and reply.spent_at:
        yield Moment(
            reply.spent_at, "stalled", "no answer yet: the hub takes the callback for a short text of its own", "hub"
        )
    if reply.answered_at:
        yield answered(message, reply, reply.answered_at)
    if reply.settled_at and reply.spent_at:
        took = reply.settled_at - reply.spent_at
        whose = "the hub's text" if reply.spent_by == "hub" else "the answer"
        yield Moment(reply.settled_at, reply.outcome or "", settled(reply, whose), "kakao", took)
    if reply.shown_at:
        with_what = f" to {reply.shown_with}" if reply.shown_with else ""
        yield Moment(reply.shown_at, "shown", f"shown in front of the answer{with_what}")
    elif reply.kept_until and reply.kept_until <= now:
        yield Moment(reply.kept_until, "unseen", "no longer kept: the user did not write again in time")


def answered(message: Message, reply: Reply, at: datetime) -> Moment:
    if reply.spent_by == "agent":
        return Moment(at, "answered", f"answered; the callback is taken, as reply {reply.id}", "agent")
    if message.status == "EXPIRED" and not message.delivery_count:
        return Moment(at, "late", "the user is to be told so in front of the next answer", "hub")
    why = f" ({reply.error})" if reply.error and reply.spent_by is None else ""
    return Moment(at, "late", f"answered too late for the callback{why}; kept as reply {reply.id}", "agent")


def settled(reply: Reply, whose: str) -> str:
    said = " ".join(str(word) for word in (reply.status_code, kakaos_words(reply)) if word)
    match reply.outcome:
        case "sent":
            return f"Kakao took {whose}: {said}" if said else f"Kakao took {whose}"
        case "refused":
            return f"Kakao refused {whose}: {reply.error or said}"
        case _:
            return f"nobody knows whether Kakao took {whose}: {reply.error or said}"


def kakaos_words(reply: Reply) -> str:
    said = reply.kakao or {}
    return ", ".join(str(said[name]) for name in ("status", "message", "taskId") if said.get(name))


def holder_in_words(held_by: str | None) -> str:
    """`stream:<token>:<stream>`, `closed:<token>:<stream>` or `poll:<token>`, in a person's words."""
    kind, _, rest = (held_by or "").partition(":")
    token, _, stream = rest.partition(":")
    match kind:
        case "stream":
            return f"stream {stream} of {token}"
        case "closed":
            return f"stream {stream} of {token}, which has closed since"
        case "poll":
            return f"a poller of {token}"
        case _:
            return held_by or "its account"


def standing(message: Message, now: datetime) -> tuple[str, datetime | None]:
    """How it stands now in a few words, and the moment they end with, if they do."""
    match message.status:
        case "QUEUED" if message.expires_at <= now:
            return "QUEUED, expired", None
        case "QUEUED":
            return "QUEUED, expires", message.expires_at
        case "DELIVERED" if message.leased_until and message.leased_until <= now:
            return f"DELIVERED to {holder_in_words(message.held_by)}, who let go of it; expires", message.expires_at
        case "DELIVERED":
            return f"DELIVERED, held by {holder_in_words(message.held_by)}; the lease ends", message.leased_until
        case "ACKED":
            return f"ACKED, reply {message.reply}" if message.reply else "ACKED, no reply", None
        case status:
            return f"{status}, {message.reason}", None
