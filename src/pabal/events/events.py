"""Events: find, list and cancel them, as far as the caller may see them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

import msgspec

from pabal.audit.record import record_action
from pabal.core.actor import Actor
from pabal.core.errors import Conflict, NotFound
from pabal.db.bounded_scan import MAX_SCANNED_ROWS, ScanCursor, ScannedRow, ScanPage, bounded_scan, make_scan_page
from pabal.db.queries import Query, load_queries
from pabal.db.stored_json import MAX_RESPONSE_BYTES
from pabal.db.tx import Tx
from pabal.events.error_history import FailedAttempt, parse_error_history
from pabal.events.publish.fan_out import stop_fan_out
from pabal.events.types import EventStatus

Q = load_queries(__file__)

BacklogState = Literal["disabled", "paused", "resting"]

MIN_BACKLOG_AGE = timedelta(seconds=10)
"""Events that are due for less time than this do not count as a backlog."""
MAX_BACKLOG_COUNT = 1000
"""Count at most this many events for one subscription."""


@dataclass(frozen=True, slots=True)
class EventAccess:
    """What a caller may see: a service the events it sent or received, `all_services` every event."""

    service: str
    all_services: bool = False


OPERATOR_ACCESS = EventAccess("hub", all_services=True)


@dataclass(frozen=True, slots=True)
class Event:
    """An event with its current state."""

    id: UUID
    event_type: str
    source_service: str
    target_service: str | None
    payload: dict[str, Any]
    status: EventStatus
    priority: int
    retry_count: int
    max_retries: int
    next_retry_at: datetime | None
    processing_started_at: datetime | None
    processor_id: str | None
    processed_at: datetime | None
    last_error: str | None
    error_code: str | None
    error_history: Sequence[FailedAttempt] | None = field(metadata={"parse": parse_error_history})
    created_at: datetime
    expires_at: datetime | None
    ordering_key: str | None
    idempotency_key: str | None
    correlation_id: str | None
    traceparent: str | None
    parent_id: UUID | None
    origin_id: UUID
    is_broadcast: bool


class EventPageRow(msgspec.Struct, frozen=True):
    """An event for a response: its payload is not decoded."""

    id: UUID
    event_type: str
    source_service: str
    target_service: str | None
    payload_json: str
    status: EventStatus
    priority: int
    retry_count: int
    max_retries: int
    next_retry_at: datetime | None
    processing_started_at: datetime | None
    processor_id: str | None
    processed_at: datetime | None
    last_error: str | None
    error_code: str | None
    created_at: datetime
    expires_at: datetime | None
    ordering_key: str | None
    idempotency_key: str | None
    correlation_id: str | None
    traceparent: str | None
    parent_id: UUID | None
    origin_id: UUID
    is_broadcast: bool
    bytes_before: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """The delivery of a broadcast to one subscriber."""

    id: UUID
    target_service: str
    status: EventStatus
    retry_count: int
    processed_at: datetime | None
    last_error: str | None


@dataclass(frozen=True, slots=True)
class EventSummary:
    """An event without its payload, for long lists."""

    id: UUID
    event_type: str
    source_service: str
    target_service: str | None
    status: EventStatus
    retry_count: int
    max_retries: int
    processing_started_at: datetime | None
    created_at: datetime
    last_error: str | None
    is_broadcast: bool


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Selects events. `event_type` may contain `*`; None matches everything."""

    status: EventStatus | None = None
    event_type: str | None = None
    source: str | None = None
    target: str | None = None


async def find_event(tx: Tx, event_id: UUID, access: EventAccess) -> Event:
    event = await tx.maybe(Event, Q.find_event, id=event_id, service=access.service, all=access.all_services)
    if event is None:
        raise NotFound(f"No such event: {event_id}")
    return event


async def list_events(
    tx: Tx, access: EventAccess, criteria: EventFilter, *, before: ScanCursor | None = None, limit: int = 50
) -> list[Event]:
    """List the newest `limit` events, in as many scans as it takes. `before` is the end of the previous page."""
    events: list[Event] = []
    while True:
        page = await scan_events(tx, access, criteria, before=before, limit=limit - len(events))
        events += page.rows
        if page.end is None or len(events) >= limit:
            return events
        before = page.end.created_at, page.end.id


async def scan_events(
    tx: Tx,
    access: EventAccess,
    criteria: EventFilter,
    *,
    before: ScanCursor | None = None,
    limit: int = 50,
    scan_limit: int = MAX_SCANNED_ROWS,
) -> ScanPage[Event]:
    """Return the events that the caller may see, the newest first; reads at most `scan_limit` rows.

    The publisher of a broadcast sees the broadcast; a subscriber sees its own delivery.
    """
    scanned = await _scan_matching_events(tx, access, criteria, before=before, limit=limit, scan_limit=scan_limit)
    ids = [row.id for row in scanned if row.is_match]
    events = (
        await tx.all(Event, Q.list_events_by_id, ids=ids, service=access.service, all=access.all_services)
        if ids
        else []
    )
    return make_scan_page(events, scanned, limit)


async def scan_event_page(
    tx: Tx, access: EventAccess, criteria: EventFilter, *, before: ScanCursor | None = None, limit: int = 50
) -> ScanPage[EventPageRow]:
    """Return a page like `scan_events`, for a response. It ends early when its payloads reach MAX_RESPONSE_BYTES."""
    scanned = await _scan_matching_events(tx, access, criteria, before=before, limit=limit, scan_limit=MAX_SCANNED_ROWS)
    ids = [row.id for row in scanned if row.is_match]
    if not ids:
        return make_scan_page([], scanned, limit)
    rows = await tx.all(
        EventPageRow,
        Q.list_event_page,
        ids=ids,
        service=access.service,
        all=access.all_services,
        max_bytes=MAX_RESPONSE_BYTES,
    )
    if rows and rows[-1].bytes_before + len(rows[-1].payload_json.encode()) >= MAX_RESPONSE_BYTES:
        end = ScannedRow(rows[-1].id, rows[-1].created_at, is_match=True, is_scan_end=False)
        return ScanPage(rows, end, truncated=False)
    return make_scan_page(rows, scanned, limit)


async def scan_event_summaries(
    tx: Tx,
    criteria: EventFilter,
    *,
    before: ScanCursor | None = None,
    limit: int = 50,
    scan_limit: int = MAX_SCANNED_ROWS,
) -> ScanPage[EventSummary]:
    """Return summaries of the events of all services, the newest first; reads at most `scan_limit` rows."""
    scanned = await _scan_matching_events(
        tx, OPERATOR_ACCESS, criteria, before=before, limit=limit, scan_limit=scan_limit
    )
    ids = [row.id for row in scanned if row.is_match]
    summaries = await tx.all(EventSummary, Q.list_event_summaries, ids=ids) if ids else []
    return make_scan_page(summaries, scanned, limit)


async def _scan_matching_events(
    tx: Tx, access: EventAccess, criteria: EventFilter, *, before: ScanCursor | None, limit: int, scan_limit: int
) -> list[ScannedRow]:
    """Run every scan query that can find a match; `bounded_scan` starts with few rows and widens."""
    created_at, event_id = before or (None, None)
    parameters = {
        "status": criteria.status,
        "event_type": like_pattern(criteria.event_type) if criteria.event_type else None,
        "before": created_at,
        "before_id": event_id,
        "limit": limit,
    }
    scans = _event_scan_queries(access, criteria)

    async def scan(scan_limit: int) -> list[ScannedRow]:
        pages = [
            await tx.all(ScannedRow, query, **parameters, **services, scan_limit=scan_limit)
            for query, services in scans
        ]
        return [row for page in pages for row in page]

    return await bounded_scan(scan, limit, scan_limit // max(len(scans), 1))


def _event_scan_queries(access: EventAccess, criteria: EventFilter) -> list[tuple[Query, dict[str, str | None]]]:
    """One query per index: the events a service sent, and those it received from other services.

    A caller that sees all services needs only one of them.
    """
    source, target = criteria.source, criteria.target
    if access.all_services and source is not None:
        return [(Q.scan_sent_events, {"source": source, "target": target})]
    if access.all_services and target is not None:
        return [(Q.scan_received_events, {"target": target, "source": None, "except_source": None})]
    if access.all_services:
        return [(Q.scan_newest_events, {})]
    service = access.service
    scans: list[tuple[Query, dict[str, str | None]]] = []
    if source in {None, service}:
        scans.append((Q.scan_sent_events, {"source": service, "target": target}))
    if target in {None, service} and source != service:
        scans.append((Q.scan_received_events, {"target": service, "source": source, "except_source": service}))
    return scans


async def list_deliveries(tx: Tx, event_id: UUID, access: EventAccess) -> list[Delivery]:
    return await tx.all(Delivery, Q.list_deliveries, id=event_id, service=access.service, all=access.all_services)


async def list_dead_letter_ids(tx: Tx, event_id: UUID) -> list[UUID]:
    """List the dead letters of an event, the oldest first."""
    return await tx.column(Q.list_dead_letter_ids, id=event_id)


def like_pattern(event_type: str) -> str:
    """Turn an event type that may contain `*` into a LIKE pattern."""
    return event_type.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_").replace("*", "%")


def like_patterns(event_types: Iterable[str]) -> list[str]:
    return [like_pattern(event_type) for event_type in event_types]


async def cancel_event(tx: Tx, event: Event, actor: Actor) -> list[UUID]:
    """Cancel the event, or the unfinished deliveries of a broadcast; return the cancelled ids."""
    is_stopped = event.is_broadcast and await stop_fan_out(tx, event.id)
    cancelled = await tx.column(
        Q.cancel_event, id=event.id, is_broadcast=event.is_broadcast, source=event.source_service, actor=actor.name
    )
    if not cancelled and not is_stopped:
        status = await tx.value(Q.find_event_status, id=event.id, source=event.source_service)
        raise Conflict(f"The event has already finished: it is {status or 'deleted'}")
    await record_action(tx, actor, "event.cancelled", str(event.id), count=len(cancelled))
    return cancelled


@dataclass(frozen=True, slots=True)
class SubscriptionBacklog:
    """Events due for a subscription that receives nothing. `resting` means that its circuit breaker is open."""

    subscription: UUID
    service: str
    state: BacklogState
    count: int


async def list_subscription_backlogs(tx: Tx, limit: int = 20) -> list[SubscriptionBacklog]:
    """List subscriptions that receive nothing although events are due that no other subscription takes."""
    return await tx.all(
        SubscriptionBacklog,
        Q.list_subscription_backlogs,
        min_age=MIN_BACKLOG_AGE,
        max_count=MAX_BACKLOG_COUNT,
        limit=limit,
    )
