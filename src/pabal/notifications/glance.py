"""Lists of notifications: whatever is looked for among however many, one look goes through so many and no more."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from pabal.core.sight import REACH, Place, Seen, Sight, look_on, sight_of
from pabal.db.queries import Query, beside
from pabal.db.tx import Tx
from pabal.notifications.plan import Channel
from pabal.notifications.read import Filter, Notification, Reader, several

Q = beside(__file__)

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


async def glance(
    tx: Tx, chosen: Filter, *, before: Place | None = None, limit: int = 50, reach: int = REACH
) -> Sight[Glance]:
    """Everybody's as a page shows them, the newest first; `before` is where the look before ended."""
    seen = await _look(tx, OPERATOR, chosen, before=before, limit=limit, reach=reach)
    ids = [each.id for each in seen if each.is_chosen]
    return sight_of(await tx.all(Glance, Q.glances, ids=ids) if ids else [], seen, limit)


async def every(
    tx: Tx, who: Reader, chosen: Filter, *, before: Place | None = None, limit: int = 50, reach: int = REACH
) -> Sight[Notification]:
    """Those that somebody may see as they stand, the newest first; `before` is where the look before ended."""
    seen = await _look(tx, who, chosen, before=before, limit=limit, reach=reach)
    ids = [each.id for each in seen if each.is_chosen]
    return sight_of(await several(tx, ids, who) if ids else [], seen, limit)


async def _look(tx: Tx, who: Reader, chosen: Filter, *, before: Place | None, limit: int, reach: int) -> list[Seen]:
    """Look along every road that leads to what is chosen, a little way first."""
    at, row = before or (None, None)
    said = {"state": chosen.state, "template": chosen.template, "before": at, "before_id": row, "limit": limit}
    query, roads, more = await _roads(tx, who, chosen)

    async def along(reach: int) -> list[Seen]:
        return await tx.all(Seen, query, roads=roads, reach=reach, **said, **more)

    return await look_on(along, limit, max(limit, reach // len(roads)))


async def _roads(tx: Tx, who: Reader, chosen: Filter) -> tuple[Query, list[str], dict[str, Any]]:
    """The index that knows the most of what is chosen, and whose part of it to look through."""
    if chosen.recipient is not None:
        return Q.received, [*Channel], {"recipient": chosen.recipient, "service": who.service, "all": who.all}
    roads = await tx.column(Q.services) if who.all else [who.service]
    return (Q.asked if chosen.state in {None, "sent"} else Q.unsent), roads, {}
