"""Read: what an event is and what became of it, for those it concerns."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from pabal.core.errors import NotFound
from pabal.db.queries import beside
from pabal.db.tx import Tx

Q = beside(__file__)

REACH = 20_000
"""Events that one look goes through at most, however rare what it looks for is."""


@dataclass(frozen=True, slots=True)
class Reader:
    """Who asks: a service sees what it sent and what is for it; `all` sees everything."""

    service: str
    all: bool = False


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
class Seen:
    """An event that a look came by: one that was meant, or the last one it reached."""

    id: UUID
    created_at: datetime
    is_chosen: bool
    is_last: bool


@dataclass(frozen=True, slots=True)
class Sight:
    """What a look found. `end` is where to look on, where there is more; `tired` is one that gave up there."""

    events: list[Glance]
    end: Seen | None
    tired: bool


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


async def every(
    tx: Tx, who: Reader, chosen: Filter, *, before: tuple[datetime, UUID] | None = None, limit: int = 50
) -> list[Event]:
    """The newest first; `before` is where the page before ended."""
    at, row = before or (None, None)
    return await tx.all(
        Event,
        Q.list,
        service=who.service,
        all=who.all,
        status=chosen.status,
        event_type=as_like(chosen.event_type) if chosen.event_type else None,
        source=chosen.source,
        target=chosen.target,
        before=at,
        before_id=row,
        limit=limit,
    )


async def glance(
    tx: Tx, chosen: Filter, *, before: tuple[datetime, UUID] | None = None, limit: int = 50, reach: int = REACH
) -> Sight:
    """The newest first, of everybody's, for a page that must not be slow: one look goes through `reach` events."""
    at, row = before or (None, None)
    said = {
        "status": chosen.status,
        "event_type": as_like(chosen.event_type) if chosen.event_type else None,
        "before": at,
        "before_id": row,
        "reach": reach,
        "limit": limit,
    }
    if chosen.source is not None:
        seen = await tx.all(Seen, Q.sent, source=chosen.source, target=chosen.target, **said)
    elif chosen.target is not None:
        seen = await tx.all(Seen, Q.received, target=chosen.target, **said)
    else:
        seen = await tx.all(Seen, Q.newest, **said)
    ids = [each.id for each in seen if each.is_chosen]
    full, tired = len(seen) == limit, bool(seen) and seen[-1].is_last
    events = await tx.all(Glance, Q.glances, ids=ids) if ids else []
    return Sight(events, seen[-1] if full or tired else None, tired and not full)


async def deliveries(tx: Tx, event_id: UUID, who: Reader) -> list[Delivery]:
    return await tx.all(Delivery, Q.deliveries, id=event_id, service=who.service, all=who.all)


async def letters(tx: Tx, event_id: UUID) -> list[UUID]:
    """The dead letters of an event, the first death first."""
    return await tx.column(Q.letters, id=event_id)


def as_like(event_type: str) -> str:
    """A type with * in it as the pattern LIKE understands."""
    return event_type.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_").replace("*", "%")
