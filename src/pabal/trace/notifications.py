"""A notification's story, from whoever asked for it to the screen it was read on, and what an event made of them."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from pabal.core.errors import NotFound
from pabal.core.ids import id_prefix_range
from pabal.core.messages import Message, duration_message, join_messages, message_table
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.notifications.decision.decide import DecisionStep, NotificationChannel, SuppressReason

NOTIFICATION_STATE_TEXTS = message_table("pending", "sent", "failed", "suppressed")
NOTIFICATION_CHANNEL_TEXTS = message_table(*NotificationChannel)
NOTIFICATION_STEP_TEXTS = message_table(*DecisionStep)
NOTIFICATION_REASON_TEXTS = message_table(*SuppressReason, "exhausted", "refused", "unknown", "unrenderable")
UNKNOWN_WORKER = Message("somebody")
NOTIFICATION_ACTION_TEXTS = message_table("notification.again", "notification.cancelled", "preference.overridden")


@dataclass(frozen=True, slots=True)
class TracedNotification:
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
class TracedNotificationAttempt:
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
class NotificationAuditEntry:
    """What somebody did, as the audit log has it."""

    at: datetime
    actor: str
    action: str
    subject: str
    details: dict[str, Any]


@dataclass(frozen=True, slots=True)
class NotificationTraceEntry:
    """Something that happened. `took` is how long an attempt lasted."""

    at: datetime
    kind: str
    says: str
    by: str | None = None
    took: timedelta | None = None


def notification_trace_entries(
    request: TracedNotification,
    attempts: Sequence[TracedNotificationAttempt],
    audit_entries: Sequence[NotificationAuditEntry],
) -> list[NotificationTraceEntry]:
    """Everything that happened to a request, the first first."""
    moments = [
        *notification_request_entries(request),
        *map(notification_attempt_entry, attempts),
        *notification_end_entries(request, attempts),
        *notification_toast_entries(request),
        *map(notification_audit_log_entry, audit_entries),
    ]
    return sorted(moments, key=lambda moment: moment.at)  # one after the other as told, where the time is the same


def notification_request_entries(request: TracedNotification) -> Iterator[NotificationTraceEntry]:
    channel = NOTIFICATION_CHANNEL_TEXTS.get(request.recipient_type, request.recipient_type)
    by = notification_requester(request)
    says = Message("{} for {} {} asked for by {}", request.template_key, channel, request.recipient_id, by)
    yield NotificationTraceEntry(request.created_at, "asked", says, by)
    steps = join_messages(NOTIFICATION_STEP_TEXTS.get(each, each) for each in decision_steps_at_request(request))
    suppressed = request.state == "suppressed" and request.ended_at == request.created_at
    if suppressed:
        says = Message("suppressed at once, {}: {}", notification_reason_text(request), steps)
        yield NotificationTraceEntry(request.created_at, "suppressed", says)
    elif steps:
        yield NotificationTraceEntry(request.created_at, "decided", Message("to be sent: {}", steps))


def notification_requester(request: TracedNotification) -> str:
    """Who asked: a rule by its name, while it has one, or whoever the row says."""
    if request.rule_id is None:
        return request.requested_by
    return Message("rule {}", request.rule or request.rule_id)


def notification_reason_text(request: TracedNotification) -> str:
    return NOTIFICATION_REASON_TEXTS.get(request.reason or "", request.reason or "")


def decision_steps_at_request(request: TracedNotification) -> list[str]:
    """The steps that were taken when it was asked for."""
    before = [*request.decision]
    if DecisionStep.AT_SEND in before:
        before = before[: before.index(DecisionStep.AT_SEND)]
    return [step for step in before if step not in {DecisionStep.FIRST_OF_INCIDENT, DecisionStep.RAISED}]


def notification_attempt_entry(attempt: TracedNotificationAttempt) -> NotificationTraceEntry:
    took = attempt.ended_at - attempt.started_at
    which = (attempt.attempt, attempt.worker or UNKNOWN_WORKER)
    match attempt.outcome:
        case "done":
            kind, says = (
                "sent",
                describe_discord_response(Message("attempt {} by {} got through", *which), attempt.answer),
            )
        case "snooze":
            kind, says = "snoozed", Message("put off, no attempt spent: {}", attempt.why)
        case "suppressed":
            why = NOTIFICATION_REASON_TEXTS.get(attempt.why or "", attempt.why)
            kind, says = "suppressed", Message("suppressed as it was about to be sent: {}", why)
        case "unknown":
            kind, says = "unknown", Message("attempt {} by {} was never heard of again: {}", *which, attempt.why)
        case "dead":
            kind, says = "died", Message("attempt {} by {} failed for good: {}", *which, attempt.why)
        case _:
            kind, says = "failed", Message("attempt {} by {} failed: {}", *which, attempt.why)
    return NotificationTraceEntry(attempt.ended_at, kind, says, attempt.worker, took)


def describe_discord_response(text: Message, response: dict[str, Any] | None) -> Message:
    if not response:
        return text
    if response.get("dry_run"):
        return Message("{}, written down instead of sent: there is no Discord token", text)
    message, channel = response.get("message_id"), response.get("channel_id")
    return Message("{}: Discord message {} in channel {}", text, message, channel)


def notification_end_entries(
    request: TracedNotification, attempts: Sequence[TracedNotificationAttempt]
) -> Iterator[NotificationTraceEntry]:
    """An end that no attempt tells of: called off, too late, or its last holder never came back."""
    at = request.ended_at
    if at is None or request.state == "sent" or at == request.created_at:
        return
    if request.state == "failed" and not any(each.outcome == "dead" for each in attempts):
        yield NotificationTraceEntry(
            at, "died", Message("failed, {}: {}", notification_reason_text(request), request.last_error)
        )
    elif request.state == "suppressed" and not any(each.outcome == "suppressed" for each in attempts):
        kind = "expired" if request.reason == "expired" else "suppressed"
        yield NotificationTraceEntry(at, kind, Message("suppressed: {}", notification_reason_text(request)))


def notification_toast_entries(request: TracedNotification) -> Iterator[NotificationTraceEntry]:
    if request.recipient_type != NotificationChannel.DASHBOARD_TOAST:
        return
    said = (
        (request.arrived_at, "arrived", Message("is in the dashboard")),
        (request.seen_at, "seen", Message("was on a screen")),
        (request.read_at, "shown", Message("was read")),
        (request.archived_at, "archived", Message("was put away")),
    )
    yield from (NotificationTraceEntry(at, kind, says) for at, kind, says in said if at is not None)


def notification_audit_log_entry(audit_entry: NotificationAuditEntry) -> NotificationTraceEntry:
    """What the audit log adds: whose wish an emergency passed over, who called it off."""
    action, reason = (
        NOTIFICATION_ACTION_TEXTS.get(audit_entry.action, audit_entry.action),
        audit_entry.details.get("reason"),
    )
    says = Message("{} by {}", action, audit_entry.actor)
    if reason:
        says = Message("{} ({}) by {}", action, NOTIFICATION_REASON_TEXTS.get(str(reason), reason), audit_entry.actor)
    return NotificationTraceEntry(audit_entry.at, "deed", says, audit_entry.actor)


def notification_status_text(request: TracedNotification, now: datetime) -> Message:
    """How it stands now, in a few words."""
    match request.state:
        case "pending" if request.leased_until and request.leased_until > now:
            left = duration_message(request.leased_until - now)
            return Message("pending, held by {}; the lease ends in {}", request.held_by, left)
        case "pending" if request.scheduled_at > now:
            return Message("pending, due in {}", duration_message(request.scheduled_at - now))
        case "pending":
            return Message("pending, due")
        case "sent":
            return NOTIFICATION_STATE_TEXTS["sent"]
        case state:
            return Message("{}, {}", NOTIFICATION_STATE_TEXTS.get(state, state), notification_reason_text(request))


Q = load_queries(__file__)

MAX_NOTIFICATION_MATCHES = 6
MAX_TRACED_NOTIFICATIONS = 20
"""Notifications of an event that are told of one by one; the others are counted."""


@dataclass(frozen=True, slots=True)
class NotificationTrace:
    """What became of one notification. `now` is the database's time."""

    now: datetime
    request: TracedNotification
    attempts: list[TracedNotificationAttempt]
    entries: list[NotificationTraceEntry]


@dataclass(frozen=True, slots=True)
class NotificationStateCount:
    """How many ended alike, or wait."""

    state: str
    count: int


@dataclass(frozen=True, slots=True)
class EventNotifications:
    """What events made: all of it counted by state, the first of it told."""

    counts: list[NotificationStateCount]
    traces: list[NotificationTrace]


async def find_notification_matches(tx: Tx, prefix: str) -> list[UUID]:
    """Every notification whose id begins so; nothing for what cannot be the beginning of an id."""
    span = id_prefix_range(prefix)
    if span is None:
        return []
    low, high = span
    return await tx.column(Q.list_ids_in_range, low=low, high=high, limit=MAX_NOTIFICATION_MATCHES)


async def trace_notification(tx: Tx, notification_id: UUID) -> NotificationTrace:
    """Tell the story of one notification."""
    for found in await trace_notifications(tx, [notification_id]):
        return found
    raise NotFound(f"there is no notification {notification_id}")


async def trace_notifications(tx: Tx, ids: Collection[UUID]) -> list[NotificationTrace]:
    """Tell the stories of these, the oldest first."""
    asked = [*ids]
    requests = await tx.all(TracedNotification, Q.list_traced_notifications, ids=asked)
    tries = await tx.all(TracedNotificationAttempt, Q.list_traced_attempts, ids=asked)
    deeds = await tx.all(NotificationAuditEntry, Q.list_audit_entries, subjects=[*map(str, asked)])
    now: datetime = await tx.value(Q.database_now)
    found: list[NotificationTrace] = []
    for request in requests:
        own = [each for each in tries if each.request_id == request.id]
        done = [each for each in deeds if each.subject == str(request.id)]
        found.append(NotificationTrace(now, request, own, notification_trace_entries(request, own, done)))
    return found


async def trace_notifications_of_events(
    tx: Tx, events: Collection[UUID], correlation_id: str | None = None
) -> EventNotifications:
    """What the rules made of these events, and whatever was asked for under the same correlation id."""
    meant = {"events": [*events], "correlation": correlation_id}
    counts = await tx.all(NotificationStateCount, Q.count_by_state, **meant)
    first = await tx.column(Q.list_ids_of_events, **meant, limit=MAX_TRACED_NOTIFICATIONS) if counts else []
    return EventNotifications(counts, await trace_notifications(tx, first) if first else [])
