"""The timeline of a notification, from its request to the screen it was read on. Pure functions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from pabal.core.messages import Message, duration_message, join_messages, message_table
from pabal.notifications.decision.decide import DecisionStep, NotificationChannel, SuppressReason
from pabal.notifications.states import (
    AttemptOutcome,
    CategoryName,
    NotificationReason,
    NotificationState,
    RecipientType,
)
from pabal.trace.entry import UNKNOWN_WORKER, AuditedAction, TraceEntry, TraceEntryKind, sort_entries

NOTIFICATION_STATE_TEXTS = message_table("pending", "sent", "failed", "suppressed")
NOTIFICATION_CHANNEL_TEXTS = message_table(*NotificationChannel)
NOTIFICATION_STEP_TEXTS = message_table(*DecisionStep)
NOTIFICATION_REASON_TEXTS = message_table(*SuppressReason, "exhausted", "refused", "unknown", "unrenderable")
CHORE_STEPS = frozenset[str]({DecisionStep.RAISED, DecisionStep.NO_TRANSPORT})
"""Steps that chores add while a notification waits."""
NOTIFICATION_ACTION_TEXTS = message_table("notification.again", "notification.cancelled", "preference.overridden")


@dataclass(frozen=True, slots=True)
class TracedNotification:
    """The row of a notification request, with its template, rule, address and toast."""

    id: UUID
    recipient_type: RecipientType
    recipient_id: str
    template_key: str
    category: CategoryName
    state: NotificationState
    reason: NotificationReason | None
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
    """One attempt to send a notification, and its result."""

    request_id: UUID
    attempt: int
    worker: str | None
    started_at: datetime
    ended_at: datetime
    outcome: AttemptOutcome
    why: str | None
    answer: dict[str, Any] | None


def notification_trace_entries(
    request: TracedNotification,
    attempts: Sequence[TracedNotificationAttempt],
    actions: Sequence[AuditedAction],
) -> list[TraceEntry]:
    """The timeline of a notification."""
    entries = [
        *notification_request_entries(request),
        *map(notification_attempt_entry, attempts),
        *notification_end_entries(request, attempts),
        *notification_toast_entries(request),
        *map(audited_notification_entry, actions),
    ]
    return sort_entries(entries)


def notification_request_entries(request: TracedNotification) -> Iterator[TraceEntry]:
    channel = NOTIFICATION_CHANNEL_TEXTS.get(request.recipient_type, request.recipient_type)
    requester = notification_requester(request)
    text = Message("{} for {} {} requested by {}", request.template_key, channel, request.recipient_id, requester)
    yield TraceEntry(request.created_at, "asked", text, requester)
    steps = join_messages(NOTIFICATION_STEP_TEXTS.get(step, step) for step in decision_steps_at_request(request))
    if request.state == "suppressed" and request.ended_at == request.created_at:
        text = Message("suppressed on arrival, {}: {}", notification_reason_text(request), steps)
        yield TraceEntry(request.created_at, "suppressed", text)
    elif steps:
        yield TraceEntry(request.created_at, "decided", Message("accepted for sending: {}", steps))


def notification_requester(request: TracedNotification) -> str:
    """The rule (by name, or by id once it is deleted), service, operator or program that requested it."""
    if request.rule_id is None:
        return request.requested_by
    return Message("rule {}", request.rule or request.rule_id)


def notification_reason_text(request: TracedNotification) -> str:
    return NOTIFICATION_REASON_TEXTS.get(request.reason or "", request.reason or "")


def decision_steps_at_request(request: TracedNotification) -> list[str]:
    """The steps of the decision that was made when the notification was requested."""
    steps = [*request.decision]
    if DecisionStep.AT_SEND in steps:
        steps = steps[: steps.index(DecisionStep.AT_SEND)]
    return [step for step in steps if step not in {DecisionStep.FIRST_OF_INCIDENT, *CHORE_STEPS}]


def notification_attempt_entry(attempt: TracedNotificationAttempt) -> TraceEntry:
    kind: TraceEntryKind
    number_and_worker = (attempt.attempt, attempt.worker or UNKNOWN_WORKER)
    match attempt.outcome:
        case "done":
            text = Message("attempt {} by {} succeeded", *number_and_worker)
            kind, text = "sent", describe_discord_response(text, attempt.answer)
        case "snooze":
            kind, text = "snoozed", Message("postponed without using an attempt: {}", attempt.why)
        case "suppressed":
            reason = NOTIFICATION_REASON_TEXTS.get(attempt.why or "", attempt.why)
            kind, text = "suppressed", Message("suppressed before sending: {}", reason)
        case "unknown":
            kind, text = "unknown", Message("attempt {} by {} has no known result: {}", *number_and_worker, attempt.why)
        case "dead":
            kind, text = "died", Message("attempt {} by {} failed permanently: {}", *number_and_worker, attempt.why)
        case _:
            kind, text = "failed", Message("attempt {} by {} failed: {}", *number_and_worker, attempt.why)
    return TraceEntry(attempt.ended_at, kind, text, attempt.worker, attempt.ended_at - attempt.started_at)


def describe_discord_response(text: Message, response: dict[str, Any] | None) -> Message:
    if not response:
        return text
    if response.get("dry_run"):
        return Message("{}, logged instead of sent: the hub is in dry-run mode", text)
    message, channel = response.get("message_id"), response.get("channel_id")
    return Message("{}: Discord message {} in channel {}", text, message, channel)


def notification_end_entries(
    request: TracedNotification, attempts: Sequence[TracedNotificationAttempt]
) -> Iterator[TraceEntry]:
    """An end without an attempt: cancelled, expired, or the worker of the last attempt never reported back."""
    at = request.ended_at
    if at is None or request.state == "sent" or at == request.created_at:
        return
    if request.state == "failed" and not any(attempt.outcome == "dead" for attempt in attempts):
        yield TraceEntry(at, "died", Message("failed, {}: {}", notification_reason_text(request), request.last_error))
    elif request.state == "suppressed" and not any(attempt.outcome == "suppressed" for attempt in attempts):
        yield TraceEntry(
            at,
            "expired" if request.reason == "expired" else "suppressed",
            Message("suppressed: {}", notification_reason_text(request)),
        )


def notification_toast_entries(request: TracedNotification) -> Iterator[TraceEntry]:
    if request.recipient_type != NotificationChannel.DASHBOARD_TOAST:
        return
    steps: tuple[tuple[datetime | None, TraceEntryKind, Message], ...] = (
        (request.arrived_at, "arrived", Message("arrived in the dashboard")),
        (request.seen_at, "seen", Message("displayed")),
        (request.read_at, "shown", Message("read")),
        (request.archived_at, "archived", Message("archived")),
    )
    yield from (TraceEntry(at, kind, text) for at, kind, text in steps if at is not None)


def audited_notification_entry(action: AuditedAction) -> TraceEntry:
    """What only the audit log records: an overridden preference, a cancellation, a resend."""
    name, reason = NOTIFICATION_ACTION_TEXTS.get(action.action, action.action), action.details.get("reason")
    text = Message("{} by {}", name, action.actor)
    if reason:
        text = Message("{} ({}) by {}", name, NOTIFICATION_REASON_TEXTS.get(str(reason), reason), action.actor)
    return TraceEntry(action.at, "deed", text, action.actor)


def notification_status_text(request: TracedNotification, now: datetime) -> Message:
    """The current state of a notification in a few words."""
    match request.state:
        case "pending" if request.leased_until and request.leased_until > now:
            remaining = duration_message(request.leased_until - now)
            return Message("pending, held by {}; the lease ends in {}", request.held_by, remaining)
        case "pending" if request.scheduled_at > now:
            return Message("pending, due in {}", duration_message(request.scheduled_at - now))
        case "pending" if DecisionStep.NO_TRANSPORT in request.decision:
            return Message("pending, waits for a Discord token")
        case "pending":
            return Message("pending, due")
        case "sent":
            return NOTIFICATION_STATE_TEXTS["sent"]
        case state:
            return Message("{}, {}", NOTIFICATION_STATE_TEXTS.get(state, state), notification_reason_text(request))
