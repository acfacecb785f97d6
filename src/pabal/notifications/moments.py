"""Moments: what the rows of a notification tell, in words and in order. Nothing here asks the database."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from pabal.core.phrase import Phrase, lasting, listed, words
from pabal.notifications.plan import Channel, Reason, Step

STATES = words("pending", "sent", "failed", "suppressed")
CHANNELS = words(*Channel)
STEPS = words(*Step)
REASONS = words(*Reason, "exhausted", "refused", "unknown", "unrenderable")
SOMEBODY = Phrase("somebody")
DEEDS = words("notification.again", "notification.cancelled", "preference.overridden")


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
    channel = CHANNELS.get(request.recipient_type, request.recipient_type)
    by = whose(request)
    says = Phrase("{} for {} {} asked for by {}", request.template_key, channel, request.recipient_id, by)
    yield Moment(request.created_at, "asked", says, by)
    steps = listed(STEPS.get(each, each) for each in planned(request))
    suppressed = request.state == "suppressed" and request.ended_at == request.created_at
    if suppressed:
        says = Phrase("suppressed at once, {}: {}", reason_of(request), steps)
        yield Moment(request.created_at, "suppressed", says)
    elif steps:
        yield Moment(request.created_at, "decided", Phrase("to be sent: {}", steps))


def whose(request: Traced) -> str:
    """Who asked: a rule by its name, while it has one, or whoever the row says."""
    if request.rule_id is None:
        return request.requested_by
    return Phrase("rule {}", request.rule or request.rule_id)


def reason_of(request: Traced) -> str:
    return REASONS.get(request.reason or "", request.reason or "")


def planned(request: Traced) -> list[str]:
    """The steps that were taken when it was asked for."""
    before = [*request.decision]
    if Step.AT_SEND in before:
        before = before[: before.index(Step.AT_SEND)]
    return [step for step in before if step not in {Step.FIRST_OF_INCIDENT, Step.RAISED}]


def tried(each: Tried) -> Moment:
    took = each.ended_at - each.started_at
    which = (each.attempt, each.worker or SOMEBODY)
    match each.outcome:
        case "done":
            kind, says = "sent", answered(Phrase("attempt {} by {} got through", *which), each.answer)
        case "snooze":
            kind, says = "snoozed", Phrase("put off, no attempt spent: {}", each.why)
        case "suppressed":
            why = REASONS.get(each.why or "", each.why)
            kind, says = "suppressed", Phrase("suppressed as it was about to be sent: {}", why)
        case "unknown":
            kind, says = "unknown", Phrase("attempt {} by {} was never heard of again: {}", *which, each.why)
        case "dead":
            kind, says = "died", Phrase("attempt {} by {} failed for good: {}", *which, each.why)
        case _:
            kind, says = "failed", Phrase("attempt {} by {} failed: {}", *which, each.why)
    return Moment(each.ended_at, kind, says, each.worker, took)


def answered(says: Phrase, answer: dict[str, Any] | None) -> Phrase:
    if not answer:
        return says
    if answer.get("dry_run"):
        return Phrase("{}, written down instead of sent: there is no Discord token", says)
    message, channel = answer.get("message_id"), answer.get("channel_id")
    return Phrase("{}: Discord message {} in channel {}", says, message, channel)


def ended(request: Traced, tries: Sequence[Tried]) -> Iterator[Moment]:
    """An end that no attempt tells of: called off, too late, or its last holder never came back."""
    at = request.ended_at
    if at is None or request.state == "sent" or at == request.created_at:
        return
    if request.state == "failed" and not any(each.outcome == "dead" for each in tries):
        yield Moment(at, "died", Phrase("failed, {}: {}", reason_of(request), request.last_error))
    elif request.state == "suppressed" and not any(each.outcome == "suppressed" for each in tries):
        kind = "expired" if request.reason == "expired" else "suppressed"
        yield Moment(at, kind, Phrase("suppressed: {}", reason_of(request)))


def toasted(request: Traced) -> Iterator[Moment]:
    if request.recipient_type != Channel.DASHBOARD_TOAST:
        return
    said = (
        (request.arrived_at, "arrived", Phrase("is in the dashboard")),
        (request.seen_at, "seen", Phrase("was on a screen")),
        (request.read_at, "shown", Phrase("was read")),
        (request.archived_at, "archived", Phrase("was put away")),
    )
    yield from (Moment(at, kind, says) for at, kind, says in said if at is not None)


def done(deed: Deed) -> Moment:
    """What the audit log adds: whose wish an emergency passed over, who called it off."""
    action, reason = DEEDS.get(deed.action, deed.action), deed.details.get("reason")
    says = Phrase("{} by {}", action, deed.actor)
    if reason:
        says = Phrase("{} ({}) by {}", action, REASONS.get(str(reason), reason), deed.actor)
    return Moment(deed.at, "deed", says, deed.actor)


def standing(request: Traced, now: datetime) -> Phrase:
    """How it stands now, in a few words."""
    match request.state:
        case "pending" if request.leased_until and request.leased_until > now:
            left = lasting(request.leased_until - now)
            return Phrase("pending, held by {}; the lease ends in {}", request.held_by, left)
        case "pending" if request.scheduled_at > now:
            return Phrase("pending, due in {}", lasting(request.scheduled_at - now))
        case "pending":
            return Phrase("pending, due")
        case "sent":
            return STATES["sent"]
        case state:
            return Phrase("{}, {}", STATES.get(state, state), reason_of(request))
