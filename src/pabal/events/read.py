"""Read: what an event is and what became of it, for those it concerns."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from pabal.core.errors import NotFound
from pabal.core.sight import REACH, Place, Seen, Sight, look_on, sight_of
from pabal.db.queries import Query, beside
from pabal.db.tx import Tx

Q = beside(__file__)


@dataclass(frozen=True, slots=True)
class Reader:
    """Who asks: a service sees what it sent and what is for it; `all` sees everything."""

    service: str
    all: bool = False


OPERATOR = Reader("hub", all=True)


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
class Glance:
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
class Filter:
    """Which events; `event_type` may hold *."""

    status: str | None = None
    event_type: str | None = None
    source: str | None = None
    target: str | None = None


async def find(tx: Tx, event_id: UUID, who: Reader) -> Event:
    event = await tx.maybe(Event, Q.find, id=event_id, service=who.service, all=who.all)
    if event is None:
        raise NotFound(f"there is no event {event_id}")
    return event


async def every(tx: Tx, who: Reader, chosen: Filter, *, before: Place | None = None, limit: int = 50) -> list[Event]:
    """The newest `limit`, however many looks it takes to find them; `before` is where the page before ended."""
    found: list[Event] = []
    while True:
        sight = await look(tx, who, chosen, before=before, limit=limit - len(found))
        found += sight.rows
        if sight.end is None or len(found) >= limit:
            return found
        before = sight.end.created_at, sight.end.id


async def look(
    tx: Tx, who: Reader, chosen: Filter, *, before: Place | None = None, limit: int = 50, reach: int = REACH
) -> Sight[Event]:
    """Those that somebody may see as they stand, the newest first; one look goes through `reach` events.

    A broadcast is there for its publisher; for its receivers their own delivery of it is.
    """
    seen = await _look(tx, who, chosen, before=before, limit=limit, reach=reach)
    ids = [each.id for each in seen if each.is_chosen]
    events = await tx.all(Event, Q.these, ids=ids, service=who.service, all=who.all) if ids else []
    return sight_of(events, seen, limit)


async def glance(
    tx: Tx, chosen: Filter, *, before: Place | None = None, limit: int = 50, reach: int = REACH
) -> Sight[Glance]:
    """The newest first, of everybody's, for a page that must not be slow."""
    seen = await _look(tx, OPERATOR, chosen, before=before, limit=limit, reach=reach)
    ids = [each.id for each in seen if each.is_chosen]
    return sight_of(await tx.all(Glance, Q.glances, ids=ids) if ids else [], seen, limit)


async def _look(tx: Tx, who: Reader, chosen: Filter, *, before: Place | None, limit: int, reach: int) -> list[Seen]:
    """Look along every road that leads to what is chosen, a little way first."""
    at, row = before or (None, None)
    said = {
        "status": chosen.status,
        "event_type": as_like(chosen.event_type) if chosen.event_type else None,
        "before": at,
        "before_id": row,
        "limit": limit,
    }
    roads = _roads(who, chosen)

    async def along(reach: int) -> list[Seen]:
        found = [await tx.all(Seen, query, **said, **whose, reach=reach) for query, whose in roads]
        return [each for some in found for each in some]

    return await look_on(along, limit, reach // max(len(roads), 1))


def _roads(who: Reader, chosen: Filter) -> list[tuple[Query, dict[str, str | None]]]:
    """What one sent, and what one received from others, each with its index; who sees all takes the one asked for."""
    source, target = chosen.source, chosen.target
    if who.all and source is not None:
        return [(Q.sent, {"source": source, "target": target})]
    if who.all:
        to = {"target": target, "source": None, "besides": None}
        return [(Q.newest, {}) if target is None else (Q.received, to)]
    me = who.service
    roads: list[tuple[Query, dict[str, str | None]]] = []
    if source in {None, me}:
        roads.append((Q.sent, {"source": me, "target": target}))
    if target in {None, me} and source != me:
        roads.append((Q.received, {"target": me, "source": source, "besides": me}))
    return roads


async def deliveries(tx: Tx, event_id: UUID, who: Reader) -> list[Delivery]:
    return await tx.all(Delivery, Q.deliveries, id=event_id, service=who.service, all=who.all)


async def letters(tx: Tx, event_id: UUID) -> list[UUID]:
    """The dead letters of an event, the first death first."""
    return await tx.column(Q.letters, id=event_id)


def as_like(event_type: str) -> str:
    """A type with * in it as the pattern LIKE understands."""
    return event_type.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_").replace("*", "%")
