"""A notification's story, from whoever asked for it to the screen it was read on, and what an event made of them."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from pabal.core.errors import NotFound
from pabal.core.ids import id_prefix_range
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.notifications.moments import (
    NotificationAuditEntry,
    NotificationTraceEntry,
    TracedNotification,
    TracedNotificationAttempt,
    notification_trace_entries,
)

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
