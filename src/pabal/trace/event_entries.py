"""The timeline of events, from their rows, their dead letters and the audit log. Pure functions."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from pabal.core.messages import Message, duration_message, message_table
from pabal.events.consume.consumers import SILENT_CONSUMER_AFTER
from pabal.events.error_history import FailedAttempt, parse_error_history
from pabal.events.subscriptions import SubscriptionMode
from pabal.events.types import EventStatus
from pabal.trace.entry import UNKNOWN_WORKER, AuditedAction, TraceEntry, sort_entries

MAX_ERROR_HISTORY = 20
"""Failed attempts that an event's row stores."""
REPLAYED_ACTION = "dead_letter.replayed"
ACTIONS_SHOWN_BY_ROWS = frozenset({REPLAYED_ACTION, "dead_letter.resolved", "event.cancelled"})
"""Audited actions that are already visible in the rows they changed."""
CANCELLED_BY_PREFIX = "cancelled by "
EVENT_STATUS_TEXTS = message_table("pending", "processing", "completed", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class TracedEvent:
    """The row of an event."""

    id: UUID
    event_type: str
    source_service: str
    target_service: str | None
    status: EventStatus
    retry_count: int
    max_retries: int
    created_at: datetime
    updated_at: datetime
    next_retry_at: datetime | None
    processing_started_at: datetime | None
    processor_id: str | None
    processed_at: datetime | None
    last_error: str | None
    error_history: Sequence[FailedAttempt] | None = field(metadata={"parse": parse_error_history})
    expires_at: datetime | None
    ordering_key: str | None
    correlation_id: str | None
    parent_id: UUID | None
    origin_id: UUID | None
    is_broadcast: bool
    is_unhandled: bool
    held_until: datetime | None
    waits_behind: UUID | None
    """The first unfinished event of its ordering key, if that is another one."""
    holds_others: bool
    """Whether later events of its ordering key wait for this pending one."""
    is_service_disabled: bool
    delivery_mode: SubscriptionMode | None
    """How a pending event is delivered; None if the service has no subscription for it and must pull it."""
    paused_at: datetime | None
    paused_by: str | None
    disabled_reason: str | None
    open_until: datetime | None
    """The circuit breaker of the receiver."""
    unclaimed_since: datetime | None
    """Since when no event of its service was claimed, if it has been due for SILENT_CONSUMER_AFTER."""


@dataclass(frozen=True, slots=True)
class TracedDeadLetter:
    """The row of a dead letter."""

    id: UUID
    original_event_id: UUID
    origin_id: UUID
    death: int
    original_event_type: str
    original_source_service: str
    original_target_service: str | None
    error_message: str
    error_history: Sequence[FailedAttempt] | None = field(metadata={"parse": parse_error_history})
    failed_at: datetime
    resolved_at: datetime | None
    resolved_by_actor: str | None
    resolution_notes: str | None
    replayed_at: datetime | None


def event_trace_entries(
    events: Iterable[TracedEvent],
    dead_letters: Sequence[TracedDeadLetter],
    actions: Sequence[AuditedAction],
    replayed_as: Mapping[UUID, UUID],
) -> list[TraceEntry]:
    """The timeline of these events. `replayed_as` maps a dead letter to the event that its replay created."""
    rows = {event.id: event for event in events}
    entries: list[TraceEntry] = []
    for event in rows.values():
        entries += event_row_entries(event, rows)
    for event_id in dict.fromkeys(letter.original_event_id for letter in dead_letters):
        letters = [letter for letter in dead_letters if letter.original_event_id == event_id]
        if event_id not in rows:
            entries += event_attempt_entries(event_id, letters[-1].error_history or ())
        for letter in letters:
            entries += dead_letter_entries(letter, replayed_as.get(letter.id))
    entries += audited_event_entries(actions, rows)
    return sort_entries(entries)


def event_row_entries(event: TracedEvent, rows: Mapping[UUID, TracedEvent]) -> Iterator[TraceEntry]:
    if event.origin_id in {None, event.id}:
        yield event_published_entry(event, rows)
    history = event.error_history or ()
    started, ended = event.processing_started_at, event.processed_at
    yield from event_attempt_entries(event.id, history)
    worker = event.processor_id
    attempt = event.retry_count + 1
    match event.status:
        case "processing" if started:
            text = Message("attempt {} started by {}", attempt, worker or UNKNOWN_WORKER)
            yield TraceEntry(started, "claimed", text, worker, event_id=event.id)
        case "pending" if is_snoozed_event(event, history):
            text = Message("postponed without using an attempt: {}", event.last_error)
            yield TraceEntry(event.updated_at, "snoozed", text, event_id=event.id)
        case "completed" if ended and not event.is_broadcast and started:
            text = Message("attempt {} by {} succeeded", attempt, worker or UNKNOWN_WORKER)
            yield TraceEntry(ended, "completed", text, worker, ended - started, event_id=event.id)
        case "completed" if ended and not event.is_broadcast:
            yield TraceEntry(ended, "completed", Message("completed manually"), event_id=event.id)
        case "cancelled" if ended:
            yield event_cancelled_entry(event, ended)
        case _:
            return


def event_published_entry(event: TracedEvent, rows: Mapping[UUID, TracedEvent]) -> TraceEntry:
    if event.parent_id in rows:
        text = Message("queued for {}", event.target_service)
        return TraceEntry(event.created_at, "owed", text, event_id=event.id)
    target = event.target_service or Message("all subscribers")
    text = Message("{} published by {} for {}", event.event_type, event.source_service, target)
    if event.parent_id:
        text = Message("{}, a delivery of {}", text, event.parent_id)
    if is_scheduled_event(event):
        text = Message("{}, scheduled for later", text)
    return TraceEntry(event.created_at, "published", text, event.source_service, event_id=event.id)


def event_cancelled_entry(event: TracedEvent, at: datetime) -> TraceEntry:
    reason = event.last_error or ""
    if reason == "expired":
        text = Message("expired before a consumer claimed it")
        return TraceEntry(at, "expired", text, event_id=event.id)
    if reason.startswith(CANCELLED_BY_PREFIX):
        actor = reason.removeprefix(CANCELLED_BY_PREFIX)
        return TraceEntry(at, "cancelled", Message("cancelled by {}", actor), actor, event_id=event.id)
    return TraceEntry(at, "cancelled", reason or EVENT_STATUS_TEXTS["cancelled"], event_id=event.id)


def is_scheduled_event(event: TracedEvent) -> bool:
    """Whether the publisher set the delivery time: nothing has happened since that could have moved it."""
    untouched = not event.error_history and not event.last_error and event.processing_started_at is None
    return untouched and event.next_retry_at is not None and event.next_retry_at > event.created_at


def is_snoozed_event(event: TracedEvent, history: Sequence[FailedAttempt]) -> bool:
    """Whether the event was postponed: it has a retry time and a reason that no failed attempt gave."""
    if not event.last_error or not event.next_retry_at:
        return False
    return not history or not event.last_error.startswith(history[-1].error)


def event_attempt_entries(event_id: UUID, history: Sequence[FailedAttempt]) -> Iterator[TraceEntry]:
    """The failed attempts. Old rows do not record when an attempt started."""
    for position, attempt in enumerate(history, 1):
        if attempt.at is None:  # of another program: the list of failed attempts has it
            continue
        number, worker = attempt.attempt or position, attempt.worker
        text = Message("attempt {} by {} failed: {}", number, worker or UNKNOWN_WORKER, attempt.error)
        if position == 1 and len(history) >= MAX_ERROR_HISTORY:
            text = Message("{} (earlier attempts are no longer stored)", text)
        yield TraceEntry(attempt.at, "failed", text, worker, attempt.took, event_id=event_id)


def dead_letter_entries(dead_letter: TracedDeadLetter, replayed_as: UUID | None) -> Iterator[TraceEntry]:
    event_id, letter_id, error = dead_letter.original_event_id, dead_letter.id, dead_letter.error_message
    text = Message("moved to the dead letters: {}; dead letter {}", error, letter_id)
    if dead_letter.death > 1:
        text = Message("moved to the dead letters, failure {}: {}; dead letter {}", dead_letter.death, error, letter_id)
    yield TraceEntry(dead_letter.failed_at, "died", text, event_id=event_id, letter_id=letter_id)
    actor = dead_letter.resolved_by_actor
    if dead_letter.replayed_at:
        text = Message("replayed by {}", actor) if actor else Message("replayed")
        if replayed_as and replayed_as != event_id:
            text = Message("{}, as the new event {}", text, replayed_as)
        at = dead_letter.replayed_at
        yield TraceEntry(at, "replayed", text, actor, event_id=event_id, letter_id=letter_id)
    elif dead_letter.resolved_at:
        text = Message("dead letter resolved by {}", actor) if actor else Message("dead letter resolved")
        if dead_letter.resolution_notes:
            text = Message("{}: {}", text, dead_letter.resolution_notes)
        at = dead_letter.resolved_at
        yield TraceEntry(at, "resolved", text, actor, event_id=event_id, letter_id=letter_id)


def audited_event_entries(actions: Iterable[AuditedAction], rows: Mapping[UUID, TracedEvent]) -> Iterator[TraceEntry]:
    """What the rows do not show: other actions, and the cancellation of a broadcast or of a purged event."""
    for action in actions:
        event_id = UUID(action.subject)
        row = rows.get(event_id)
        if action.action == "event.cancelled" and (row is None or row.status != "cancelled"):
            text = Message("cancelled by {}", action.actor)
            if row and row.is_broadcast:
                text = Message("{}, deliveries: {}", text, action.details.get("count", 1))
            yield TraceEntry(action.at, "cancelled", text, action.actor, event_id=event_id)
        elif action.action not in ACTIONS_SHOWN_BY_ROWS:
            text = Message("{} by {}", action.action, action.actor)
            yield TraceEntry(action.at, "deed", text, action.actor, event_id=event_id)


def event_status_text(event: TracedEvent, now: datetime) -> str:
    """The current state of an event in a few words."""
    match event.status:
        case "pending" if event.next_retry_at and event.next_retry_at > now:
            return describe_next_try(event, duration_message(event.next_retry_at - now))
        case "pending" if event.is_service_disabled:
            return Message("pending, due; the service {} is disabled", event.target_service)
        case "pending" if event.is_unhandled:
            return Message("pending, due; no handler of {} accepts {}", event.target_service, event.event_type)
        case "pending":
            return describe_wait(event, now)
        case "processing" if event.held_until or event.processing_started_at:
            return describe_holder(event, now)
        case status:
            return EVENT_STATUS_TEXTS.get(status, status)


def describe_next_try(event: TracedEvent, remaining: Message) -> Message:
    """Say when an event is due that was scheduled or failed before."""
    if not (attempts := event.retry_count + (event.processing_started_at is not None)):
        text = Message("pending, due in {}", remaining)
    else:
        text = Message("pending, next try in {}, attempt {} of {}", remaining, attempts + 1, event.max_retries + 1)
    if event.waits_behind is None and event.holds_others:
        return Message("{}; later events of its ordering key {} wait for it", text, event.ordering_key)
    return text


def describe_holder(event: TracedEvent, now: datetime) -> Message:
    """Say who holds an event that is processed."""
    if event.held_until is None:
        age = duration_message(now - (event.processing_started_at or now))
        return Message("processing, claimed with plain SQL {} ago", age)
    if event.held_until <= now:
        return Message("processing, held by {}; the lease has ended", event.processor_id)
    remaining = duration_message(event.held_until - now)
    return Message("processing, held by {}; the lease ends in {}", event.processor_id, remaining)


def describe_wait(event: TracedEvent, now: datetime) -> Message:
    """Say what a due event waits for."""
    if event.waits_behind is not None:
        return Message("pending, behind {} in its ordering key {}", event.waits_behind, event.ordering_key)
    if event.delivery_mode is None:
        text = Message(
            "pending, due; {} has no subscription for {} and must pull it", event.target_service, event.event_type
        )
        return add_silence(text, event, now)
    if event.paused_at is not None:
        since = duration_message(now - event.paused_at)
        return Message("pending, due; {} paused its subscription {} ago", event.paused_by or "sql", since)
    if event.disabled_reason is not None:
        return Message("pending, due; its subscription is disabled: {}", event.disabled_reason)
    if event.open_until is not None and event.open_until > now:
        remaining = duration_message(event.open_until - now)
        return Message("pending, due; the receiver keeps failing, the next try is in {}", remaining)
    return add_silence(Message("pending, due"), event, now)


def add_silence(text: Message, event: TracedEvent, now: datetime) -> Message:
    """Add that no consumer claims events of its service, if that is so."""
    silence = now - (event.unclaimed_since or now)
    if silence < SILENT_CONSUMER_AFTER:
        return text
    return Message("{}; no consumer has claimed for {}", text, duration_message(silence))
