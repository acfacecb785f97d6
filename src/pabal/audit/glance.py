"""A glance at the log, which costs the same however long it is.

`history` looks for as long as it takes; this stops after a portion of the log and says so, with a cursor to go on from.
"""

from dataclasses import dataclass

from pabal.audit.history import Entry, Wanted, place
from pabal.db.queries import beside
from pabal.db.tx import Tx

Q = beside(__file__)

PORTION = 50_000
"""Ids that are looked through for what is rare."""
SLACK = 1_000
"""Ids are drawn a moment before or after the time beside them: so many more are looked at before the first in time."""


@dataclass(frozen=True, slots=True)
class Glance:
    """What was found. `cursor` asks for what is before, None at the end; `cut` says that there may be more."""

    items: list[Entry]
    cursor: str | None
    cut: bool


@dataclass(frozen=True, slots=True)
class Ends:
    """The newest row before the cursor, and the oldest that may be meant; neither in an empty log."""

    newest: int | None
    oldest: int | None


async def glance(tx: Tx, wanted: Wanted, limit: int, cursor: str | None = None) -> Glance:
    """The newest `limit` deeds, or those before `cursor`: those among a portion of the log."""
    before = place(cursor)
    ends = await tx.one(Ends, Q.ends, before=before, since=wanted.since, slack=SLACK)
    if ends.newest is None or ends.oldest is None:
        return Glance([], None, cut=False)
    rare = wanted.actor is not None or wanted.action is not None
    floor = max(ends.oldest, ends.newest - PORTION + 1) if rare else ends.oldest
    found = await _found(tx, wanted, before=before, floor=floor, limit=limit + 1)
    if len(found) > limit:
        return Glance(found[:limit], str(found[limit - 1].id), cut=False)
    further = floor > ends.oldest
    return Glance(found, str(floor) if further else None, cut=further)


async def _found(tx: Tx, wanted: Wanted, *, before: int, floor: int, limit: int) -> list[Entry]:
    given = {
        "actor": wanted.actor,
        "action": wanted.action,
        "since": wanted.since,
        "before": before,
        "floor": floor,
        "limit": limit,
    }
    if wanted.subject is None:
        return await tx.all(Entry, Q.all, **given)
    return await tx.all(Entry, Q.about, subject=wanted.subject, **given)
