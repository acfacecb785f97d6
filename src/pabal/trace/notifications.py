"""The trace of notifications, on their own or of the events that created them."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from pabal.core.errors import NotFound
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.notifications.states import NotificationState
from pabal.trace.entry import (
    TraceEntry,
    TraceMatch,
    find_matches,
    list_audited_actions,
    read_trace_time,
    sort_entries,
)
from pabal.trace.notification_entries import (
    TracedNotification,
    TracedNotificationAttempt,
    notification_trace_entries,
)

Q = load_queries(__file__)

MAX_TRACED_NOTIFICATIONS = 20
"""Notifications of an event that are traced; the others are only counted."""


@dataclass(frozen=True, slots=True)
class NotificationTrace:
    """The trace of one notification. `now` is the database's time."""

    now: datetime
    request: TracedNotification
    attempts: list[TracedNotificationAttempt]
    entries: list[TraceEntry]


@dataclass(frozen=True, slots=True)
class FullNotificationTrace:
    """The trace of a notification, and of the event that created it."""

    trace: NotificationTrace
    event_entries: list[TraceEntry]


@dataclass(frozen=True, slots=True)
class NotificationStateCount:
    """How many notifications are in a state."""

    state: NotificationState
    count: int


@dataclass(frozen=True, slots=True)
class EventNotifications:
    """The notifications of some events: all counted by state, the first ones traced."""

    counts: list[NotificationStateCount]
    traces: list[NotificationTrace]


async def find_notification_matches(tx: Tx, prefix: str) -> dict[UUID, TraceMatch]:
    """The notifications with this id, prefix or short id."""
    return await find_matches(tx, Q.find_notification_matches, prefix)


async def trace_notification(tx: Tx, notification_id: UUID) -> NotificationTrace:
    for trace in await trace_notifications(tx, [notification_id]):
        return trace
    raise NotFound(f"No such notification: {notification_id}")


async def trace_notifications(tx: Tx, ids: Collection[UUID]) -> list[NotificationTrace]:
    """Trace these notifications, oldest first."""
    requests = await tx.all(TracedNotification, Q.list_traced_notifications, ids=[*ids])
    attempts = await tx.all(TracedNotificationAttempt, Q.list_traced_attempts, ids=[*ids])
    actions = await list_audited_actions(tx, ids)
    now = await read_trace_time(tx)
    traces: list[NotificationTrace] = []
    for request in requests:
        own_attempts = [attempt for attempt in attempts if attempt.request_id == request.id]
        own_actions = [action for action in actions if action.subject == str(request.id)]
        entries = notification_trace_entries(request, own_attempts, own_actions)
        traces.append(NotificationTrace(now, request, own_attempts, entries))
    return traces


async def trace_notifications_of_events(
    tx: Tx, events: Collection[UUID], correlation_id: str | None = None
) -> EventNotifications:
    """The notifications that these events created, and those requested with the correlation id."""
    origin = {"events": [*events], "correlation": correlation_id}
    counts = await tx.all(NotificationStateCount, Q.count_by_state, **origin)
    ids = await tx.column(Q.list_ids_of_events, **origin, limit=MAX_TRACED_NOTIFICATIONS) if counts else []
    return EventNotifications(counts, await trace_notifications(tx, ids) if ids else [])


def merge_entries(trace: FullNotificationTrace) -> list[TraceEntry]:
    """The entries of the event and of the notification in one timeline."""
    return sort_entries([*trace.event_entries, *trace.trace.entries])
