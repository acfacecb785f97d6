"""Lists of notifications: whatever is looked for among however many, one look goes through so many and no more."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar
from uuid import UUID

from pabal.db.queries import Query, beside
from pabal.db.tx import Tx
from pabal.notifications.plan import Channel
from pabal.notifications.read import Filter, Notification, Reader, several

Q = beside(__file__)

REACH = 20_000
"""Notifications that one look goes through at most, however rare what it looks for is."""
FURTHER = 20
"""How much further a look goes each time it found too little: what is common is found near."""
OPERATOR = Reader("hub", all=True)


@dataclass(frozen=True, slots=True)
class Glance:
    """A notification as a long list shows it: without what it carries."""

    id: UUID
    recipient_type: str
    recipient_id: str
    template_key: str
    state: str
    reason: str | None
    priority: int
    created_at: datetime
    sent_at: datetime | None


@dataclass(frozen=True, slots=True)
class Seen:
    """A notification that a look came by: one that was meant, or the last one it reached."""

    id: UUID
    created_at: datetime
    is_chosen: bool
    is_last: bool


Row = TypeVar("Row", Glance, Notification)
Place = tuple[datetime, UUID]


@dataclass(frozen=True, slots=True)
class Sight(Generic[Row]):
    """What a look found. `end` is where to look on, unless there is nothing older; `tired` if it gave up there."""

    rows: list[Row]
    end: Seen | None
    tired: bool


async def glance(
    tx: Tx, chosen: Filter, *, before: Place | None = None, limit: int = 50, reach: int = REACH
) -> Sight[Glance]:
    """Everybody's as a page shows them, the newest first; `before` is where the look before ended."""
    seen = await _look(tx, OPERATOR, chosen, before=before, limit=limit, reach=reach)
    ids = [each.id for each in seen if each.is_chosen]
    return _sight(await tx.all(Glance, Q.glances, ids=ids) if ids else [], seen, limit)


async def every(
    tx: Tx, who: Reader, chosen: Filter, *, before: Place | None = None, limit: int = 50, reach: int = REACH
) -> Sight[Notification]:
    """Those that somebody may see as they stand, the newest first; `before` is where the look before ended."""
    seen = await _look(tx, who, chosen, before=before, limit=limit, reach=reach)
    ids = [each.id for each in seen if each.is_chosen]
    return _sight(await several(tx, ids, who) if ids else [], seen, limit)


async def _look(tx: Tx, who: Reader, chosen: Filter, *, before: Place | None, limit: int, reach: int) -> list[Seen]:
    """Look along every road that leads to what is chosen, a little way first."""
    at, row = before or (None, None)
    said = {"state": chosen.state, "template": chosen.template, "before": at, "before_id": row, "limit": limit}
    query, roads, more = await _roads(tx, who, chosen)
    most, furthest = limit, max(limit, reach // len(roads))
    while True:
        seen = _known(await tx.all(Seen, query, roads=roads, reach=most, **said, **more))
        if most == furthest or len(seen) == limit or not _tired(seen):
            return seen
        most = min(most * FURTHER, furthest)


async def _roads(tx: Tx, who: Reader, chosen: Filter) -> tuple[Query, list[str], dict[str, Any]]:
    """The index that knows the most of what is chosen, and whose part of it to look through."""
    if chosen.recipient is not None:
        return Q.received, [*Channel], {"recipient": chosen.recipient, "service": who.service, "all": who.all}
    roads = await tx.column(Q.services) if who.all else [who.service]
    return (Q.asked if chosen.state in {None, "sent"} else Q.unsent), roads, {}


def _known(seen: list[Seen]) -> list[Seen]:
    """As far as every road was looked along: the first that ends ends them all."""
    for place, each in enumerate(seen):
        if each.is_last:
            return seen[: place + 1]
    return seen


def _tired(seen: Sequence[Seen]) -> bool:
    return bool(seen) and seen[-1].is_last


def _sight(rows: list[Row], seen: Sequence[Seen], limit: int) -> Sight[Row]:
    full, tired = len(seen) == limit, _tired(seen)
    return Sight(rows, seen[-1] if full or tired else None, tired and not full)
