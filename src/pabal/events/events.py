"""Read: what an event is and what became of it, for those it concerns."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from pabal.audit.record import record_action
from pabal.core.actor import Actor
from pabal.core.errors import Conflict, NotFound
from pabal.db.bounded_scan import MAX_SCANNED_ROWS, ScanCursor, ScannedRow, ScanPage, bounded_scan, make_scan_page
from pabal.db.queries import Query, load_queries
from pabal.db.tx import Tx

Q = load_queries(__file__)


@dataclass(frozen=True, slots=True)
class EventAccess:
    """Who asks: a service sees what it sent and what is for it; `all` sees everything."""

    service: str
    all_services: bool = False


OPERATOR_ACCESS = EventAccess("hub", all_services=True)


@dataclass(frozen=True, slots=True)
class Event:
    """An event as it stands."""

    id: UUID
    event_type: str
    source_service: str
    target_service: str | None
    payload: dict[str, Any]
    status: str
    priority: int
    retry_count: int
    max_retries: int
    next_retry_at: datetime | None
    processing_started_at: datetime | None
    processor_id: str | None
    processed_at: datetime | None
    last_error: str | None
    error_code: str | None
    error_history: Sequence[dict[str, Any]] | None
    created_at: datetime
    expires_at: datetime | None
    ordering_key: str | None
    idempotency_key: str | None
    correlation_id: str | None
    traceparent: str | None
    parent_id: UUID | None
    origin_id: UUID
    is_broadcast: bool


@dataclass(frozen=True, slots=True)
class Delivery:
    """One receiver's part of a broadcast."""

    id: UUID
    target_service: str
    status: str
    retry_count: int
    processed_at: datetime | None
    last_error: str | None


@dataclass(frozen=True, slots=True)
class EventSummary:
    """An event as a long list shows it: without what it carries."""

    id: UUID
    event_type: str
    source_service: str
    target_service: str | None
    status: str
    retry_count: int
    max_retries: int
    processing_started_at: datetime | None
    created_at: datetime
    last_error: str | None
    is_broadcast: bool


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events; `event_type` may hold *."""

    status: str | None = None
    event_type: str | None = None
    source: str | None = None
    target: str | None = None


async def find_event(tx: Tx, event_id: UUID, access: EventAccess) -> Event:
    event = await tx.maybe(Event, Q.find_event, id=event_id, service=access.service, all=access.all_services)
    if event is None:
        raise NotFound(f"there is no event {event_id}")
    return event


async def list_events(
    tx: Tx, access: EventAccess, criteria: EventFilter, *, before: ScanCursor | None = None, limit: int = 50
) -> list[Event]:
    """The newest `limit`, however many looks it takes to find them; `before` is where the page before ended."""
    found: list[Event] = []
    while True:
        sight = await scan_events(tx, access, criteria, before=before, limit=limit - len(found))
        found += sight.rows
        if sight.end is None or len(found) >= limit:
            return found
        before = sight.end.created_at, sight.end.id


async def scan_events(
    tx: Tx,
    access: EventAccess,
    criteria: EventFilter,
    *,
    before: ScanCursor | None = None,
    limit: int = 50,
    scan_limit: int = MAX_SCANNED_ROWS,
) -> ScanPage[Event]:
    """Those that somebody may see as they stand, the newest first; one look goes through `reach` events.

    A broadcast is there for its publisher; for its receivers their own delivery of it is.
    """
    seen = await _scan_matching_events(tx, access, criteria, before=before, limit=limit, scan_limit=scan_limit)
    ids = [each.id for each in seen if each.is_match]
    events = (
        await tx.all(Event, Q.list_events_by_id, ids=ids, service=access.service, all=access.all_services)
        if ids
        else []
    )
    return make_scan_page(events, seen, limit)


async def scan_event_summaries(
    tx: Tx,
    criteria: EventFilter,
    *,
    before: ScanCursor | None = None,
    limit: int = 50,
    scan_limit: int = MAX_SCANNED_ROWS,
) -> ScanPage[EventSummary]:
    """The newest first, of everybody's, for a page that must not be slow."""
    seen = await _scan_matching_events(tx, OPERATOR_ACCESS, criteria, before=before, limit=limit, scan_limit=scan_limit)
    ids = [each.id for each in seen if each.is_match]
    return make_scan_page(await tx.all(EventSummary, Q.list_event_summaries, ids=ids) if ids else [], seen, limit)


async def _scan_matching_events(
    tx: Tx, access: EventAccess, criteria: EventFilter, *, before: ScanCursor | None, limit: int, scan_limit: int
) -> list[ScannedRow]:
    """Look along every road that leads to what is chosen, a little way first."""
    at, row = before or (None, None)
    said = {
        "status": criteria.status,
        "event_type": like_pattern(criteria.event_type) if criteria.event_type else None,
        "before": at,
        "before_id": row,
        "limit": limit,
    }
    roads = _event_scan_queries(access, criteria)

    async def along(reach: int) -> list[ScannedRow]:
        found = [await tx.all(ScannedRow, query, **said, **whose, reach=reach) for query, whose in roads]
        return [each for some in found for each in some]

    return await bounded_scan(along, limit, scan_limit // max(len(roads), 1))


def _event_scan_queries(access: EventAccess, criteria: EventFilter) -> list[tuple[Query, dict[str, str | None]]]:
    """What one sent, and what one received from others, each with its index; who sees all takes the one asked for."""
    source, target = criteria.source, criteria.target
    if access.all_services and source is not None:
        return [(Q.scan_sent_events, {"source": source, "target": target})]
    if access.all_services:
        to = {"target": target, "source": None, "besides": None}
        return [(Q.scan_newest_events, {}) if target is None else (Q.scan_received_events, to)]
    me = access.service
    roads: list[tuple[Query, dict[str, str | None]]] = []
    if source in {None, me}:
        roads.append((Q.scan_sent_events, {"source": me, "target": target}))
    if target in {None, me} and source != me:
        roads.append((Q.scan_received_events, {"target": me, "source": source, "besides": me}))
    return roads


async def list_deliveries(tx: Tx, event_id: UUID, access: EventAccess) -> list[Delivery]:
    return await tx.all(Delivery, Q.list_deliveries, id=event_id, service=access.service, all=access.all_services)


async def list_dead_letter_ids(tx: Tx, event_id: UUID) -> list[UUID]:
    """The dead letters of an event, the first death first."""
    return await tx.column(Q.list_dead_letter_ids, id=event_id)


def like_pattern(event_type: str) -> str:
    """A type with * in it as the pattern LIKE understands."""
    return event_type.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_").replace("*", "%")


async def cancel_event(tx: Tx, event: Event, actor: Actor) -> list[UUID]:
    """End what has not ended: the event, or the open deliveries of a broadcast; their ids."""
    ended = await tx.column(
        Q.cancel_event, id=event.id, is_broadcast=event.is_broadcast, source=event.source_service, actor=actor.name
    )
    if not ended:
        status = await tx.value(Q.find_event_status, id=event.id, source=event.source_service)
        raise Conflict(f"the event has ended already: it is {status or 'gone'}")
    await record_action(tx, actor, "event.cancelled", str(event.id), count=len(ended))
    return ended


MIN_BACKLOG_AGE = timedelta(seconds=10)
"""How long an event lies before it counts: it may be on its way."""
MAX_BACKLOG_COUNT = 1000
"""Events that are counted of one subscription."""


@dataclass(frozen=True, slots=True)
class SubscriptionBacklog:
    """How much waits for a subscription that is disabled, paused, or resting because its receiver failed."""

    subscription: UUID
    service: str
    state: str
    count: int


async def list_subscription_backlogs(tx: Tx, limit: int = 20) -> list[SubscriptionBacklog]:
    """Who is sent nothing although something waits for them, and nobody else takes it."""
    return await tx.all(
        SubscriptionBacklog, Q.list_subscription_backlogs, left=MIN_BACKLOG_AGE, most=MAX_BACKLOG_COUNT, limit=limit
    )
