"""Moments: what the rows of a notification tell, in words and in order. Nothing here asks the database."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from pabal.notifications.plan import Channel, Step


@dataclass(frozen=True, slots=True)
class Traced:
    """A request as its row tells it, with the names of what it refers to, its address and its toast."""

    id: UUID
    recipient_type: str
    recipient_id: str
    template_key: str
    category: str
    state: str
    reason: str | None
    decision: Sequence[str]
    last_error: str | None
    scheduled_at: datetime
    sent_at: datetime | None
    ended_at: datetime | None
    created_at: datetime
    event_id: UUID | None
    rule_id: UUID | None
    rule: str | None
    source_service: str | None
    requested_by: str
    held_by: str | None
    leased_until: datetime | None
    unhealthy_since: datetime | None
    refusal: str | None
    arrived_at: datetime | None
    seen_at: datetime | None
    read_at: datetime | None
    archived_at: datetime | None


@dataclass(frozen=True, slots=True)
class Tried:
    """One claim of a request, and what came of it."""

    request_id: UUID
    attempt: int
    worker: str | None
    started_at: datetime
    ended_at: datetime
    outcome: str
    why: str | None
    answer: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Deed:
    """What somebody did, as the audit log has it."""

    at: datetime
    actor: str
    action: str
    subject: str
    details: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened. `took` is how long an attempt lasted."""

    at: datetime
    kind: str
    says: str
    by: str | None = None
    took: timedelta | None = None


def told(request: Traced, tries: Sequence[Tried], deeds: Sequence[Deed]) -> list[Moment]:
    """Everything that happened to a request, the first first."""
    moments = [*asked(request), *map(tried, tries), *ended(request, tries), *toasted(request), *map(done, deeds)]
    return sorted(moments, key=lambda moment: moment.at)  # one after the other as told, where the time is the same


def asked(request: Traced) -> Iterator[Moment]:
    whom = f"{request.recipient_type} {request.recipient_id}"
    by = whose(request)
    yield Moment(request.created_at, "asked", f"{request.template_key} for {whom} asked for by {by}", by)
    steps = ", ".join(planned(request))
    suppressed = request.state == "suppressed" and request.ended_at == request.created_at
    if suppressed:
        yield Moment(request.created_at, "suppressed", f"suppressed at once, {request.reason}: {steps}")
    elif steps:
        yield Moment(request.created_at, "decided", f"to be sent: {steps}")


def whose(request: Traced) -> str:
    """Who asked: a rule by its name, while it has one, or whoever the row says."""
    if request.rule_id is None:
        return request.requested_by
    return f"rule {request.rule or request.rule_id}"


def planned(request: Traced) -> list[str]:
    """The steps that were taken when it was asked for."""
    before = [*request.decision]
    if Step.AT_SEND in before:
        before = before[: before.index(Step.AT_SEND)]
    return [step for step in before if step not in {Step.FIRST_OF_INCIDENT, Step.RAISED}]


def tried(each: Tried) -> Moment:
    took = each.ended_at - each.started_at
    which = f"attempt {each.attempt} by {each.worker or 'somebody'}"
    match each.outcome:
        case "done":
            kind, says = "sent", f"{which} got through{answered(each.answer)}"
        case "snooze":
            kind, says = "snoozed", f"put off, no attempt spent: {each.why}"
        case "suppressed":
            kind, says = "suppressed", f"suppressed as it was about to be sent: {each.why}"
        case "unknown":
            kind, says = "unknown", f"{which} was never heard of again: {each.why}"
        case "dead":
            kind, says = "died", f"{which} failed for good: {each.why}"
        case _:
            kind, says = "failed", f"{which} failed: {each.why}"
    return Moment(each.ended_at, kind, says, each.worker, took)


def answered(answer: dict[str, Any] | None) -> str:
    if not answer:
        return ""
    if answer.get("dry_run"):
        return ", written down instead of sent: there is no Discord token"
    return f": Discord message {answer.get('message_id')} in channel {answer.get('channel_id')}"


def ended(request: Traced, tries: Sequence[Tried]) -> Iterator[Moment]:
    """An end that no attempt tells of: called off, too late, or its last holder never came back."""
    at = request.ended_at
    if at is None or request.state == "sent" or at == request.created_at:
        return
    if request.state == "failed" and not any(each.outcome == "dead" for each in tries):
        yield Moment(at, "died", f"failed, {request.reason}: {request.last_error}")
    elif request.state == "suppressed" and not any(each.outcome == "suppressed" for each in tries):
        kind = "expired" if request.reason == "expired" else "suppressed"
        yield Moment(at, kind, f"suppressed: {request.reason}")


def toasted(request: Traced) -> Iterator[Moment]:
    if request.recipient_type != Channel.DASHBOARD_TOAST:
        return
    said = (
        (request.arrived_at, "arrived", "is in the dashboard"),
        (request.seen_at, "seen", "was on a screen"),
        (request.read_at, "shown", "was read"),
        (request.archived_at, "archived", "was put away"),
    )
    yield from (Moment(at, kind, says) for at, kind, says in said if at is not None)


def done(deed: Deed) -> Moment:
    """What the audit log adds: whose wish an emergency passed over, who called it off."""
    reason = deed.details.get("reason")
    return Moment(deed.at, "deed", f"{deed.action}{f' ({reason})' if reason else ''} by {deed.actor}", deed.actor)


def standing(request: Traced, now: datetime) -> tuple[str, datetime | None]:
    """How it stands now in a few words, and the moment they end with, if they do."""
    match request.state:
        case "pending" if request.leased_until and request.leased_until > now:
            return f"pending, held by {request.held_by}; the lease ends", request.leased_until
        case "pending" if request.scheduled_at > now:
            return "pending, due", request.scheduled_at
        case "pending":
            return "pending, due", None
        case "sent":
            return "sent", None
        case state:
            return f"{state}, {request.reason}", None
