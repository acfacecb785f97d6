"""Glance: a long list of everybody's notifications, for a page that must not be slow however many there are."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.notifications.read import Filter

Q = beside(__file__)

REACH = 20_000
"""Notifications that one look goes through at most, however rare what it looks for is."""


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


@dataclass(frozen=True, slots=True)
class Sight:
    """What a look found. `end` is where to look on, unless there is nothing older; `tired` if it gave up there."""

    rows: list[Glance]
    end: Seen | None
    tired: bool


async def glance(
    tx: Tx, chosen: Filter, *, before: tuple[datetime, UUID] | None = None, limit: int = 50, reach: int = REACH
) -> Sight:
    """The newest first; it goes no further back than `reach` notifications."""
    at, row = before or (None, None)
    said = {"state": chosen.state, "template": chosen.template, "before_id": row, "reach": reach, "limit": limit}
    if chosen.recipient is not None:
        seen = await tx.all(Seen, Q.received, recipient=chosen.recipient, before=at, **said)
    elif chosen.state not in {None, "sent"}:
        said["reach"] = limit if chosen.template is None else reach // 4
        seen = await tx.all(Seen, Q.unsent, before=at, **said)
    else:
        seen = await tx.all(Seen, Q.newest, **said)
    ids = [each.id for each in seen if each.is_chosen]
    full, tired = len(seen) == limit, bool(seen) and seen[-1].is_last
    found = {each.id: each for each in await tx.all(Glance, Q.glances, ids=ids)} if ids else {}
    rows = [found[each] for each in ids if each in found]
    return Sight(rows, seen[-1] if full or tired else None, tired and not full)
