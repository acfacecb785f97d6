"""Repair the narrow tables of the lane if they disagree with event_queue, for example after manual changes.

A run compares a slice of each table and remembers where it ended, so it costs the same for a thousand rows and for
millions. After the end of a table, the next run begins again. In a busy hub the event table grows faster than that, so
a run also compares the events of the last minutes, which have a position of their own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from uuid import UUID

from pabal.core.log import get_logger
from pabal.db.queries import Query, load_queries
from pabal.db.tx import Tx

Q = load_queries(__file__)
log = get_logger()

FIRST_ID = UUID(int=0)
WINDOW = 20_000
"""How many rows of a table one run compares."""
LEASE_WINDOW = 500
"""Leases: each has up to a thousand events, which are counted."""
RECENT_PERIOD = timedelta(minutes=10)
"""The age of the recent events, by the times in their ids."""
RECENT_SLICES = 15
"""How many slices of the recent events one run compares: a minute of 5,000 events a second."""
RECENT_EVENTS = "recent_events"
"""The name of the position in the recent events."""


@dataclass(frozen=True, slots=True)
class RepairedTable:
    """A table that is read in slices: the statements that compare a slice, find its end, and repair rows by id."""

    name: str
    window: int
    check: Query
    find_position: Query
    repairs: Sequence[Query]


EVENT_TABLE = RepairedTable(
    "event_queue",
    WINDOW,
    Q.check_events,
    Q.find_event_position,
    (Q.requeue_events_without_lease, Q.add_missing_due, Q.list_missing_plain_claims),
)
REPAIRED_TABLES = (
    RepairedTable(
        "event_order", WINDOW, Q.check_order, Q.find_order_position, (Q.remove_stale_order, Q.repair_order_leases)
    ),
    RepairedTable("event_due", WINDOW, Q.check_due, Q.find_due_position, (Q.delete_stale_due, Q.add_missing_due)),
    EVENT_TABLE,
    RepairedTable("event_leases", LEASE_WINDOW, Q.check_leases, Q.find_lease_position, (Q.recount_leases,)),
)


@dataclass(frozen=True, slots=True)
class RepairPosition:
    """The last id of a table that was compared."""

    name: str
    after: UUID


@dataclass(frozen=True, slots=True)
class RecentIds:
    """The lowest and the highest id that an event of the last minutes has, if it was made from a time."""

    first: UUID
    last: UUID


async def advance_ordered_events(tx: Tx, batch: int) -> int:
    """Make sure that every event with an ordering key becomes due after its predecessor."""
    return await tx.run(Q.advance_ordered_events, batch=batch)


async def repair_event_tables(
    tx: Tx,
    _batch: int,
    tables: Sequence[RepairedTable] = REPAIRED_TABLES,
    recent_slices: int = RECENT_SLICES,
    recent_window: int = WINDOW,
) -> int:
    """Compare the recent events and the next slice of each table, and repair them; return how many were damaged."""
    positions = {position.name: position.after for position in await tx.all(RepairPosition, Q.list_positions)}
    recent = replace(EVENT_TABLE, window=recent_window)
    damaged = {RECENT_EVENTS: await _repair_recent_events(tx, recent, positions.get(RECENT_EVENTS), recent_slices)}
    for table in tables:
        after = positions.get(table.name)
        damaged[table.name], position = await _repair_slice(tx, table, after or FIRST_ID)
        await _store_position(tx, table.name, after, position)
    if any(damaged.values()):
        log.warning("event tables repaired", **damaged)
    return sum(damaged.values())


async def _repair_recent_events(tx: Tx, table: RepairedTable, after: UUID | None, slices: int) -> int:
    """Compare the events of the last minutes, or as many of them as fit into one run; the next one then continues.

    If they are more than several runs can compare, the oldest are skipped and left to the pass over the whole table.
    """
    recent = await tx.one(RecentIds, Q.find_recent_ids, period=RECENT_PERIOD)
    damaged, position = 0, max(after or FIRST_ID, recent.first)
    for _ in range(slices):
        count, position = await _repair_slice(tx, table, position)
        damaged += count
        if position is None or position > recent.last:  # ids that come after all times are not new
            position = None
            break
    await _store_position(tx, RECENT_EVENTS, after, position)
    return damaged


async def _repair_slice(tx: Tx, table: RepairedTable, after: UUID) -> tuple[int, UUID | None]:
    """Repair the next slice; return the number of damaged rows and the last id, or None at the end of the table."""
    ids = await tx.column(table.check, after=after, window=table.window)
    for repair in table.repairs if ids else ():
        await tx.run(repair, ids=ids)
    return len(ids), await tx.value(table.find_position, after=after, window=table.window)


async def _store_position(tx: Tx, name: str, before: UUID | None, position: UUID | None) -> None:
    if position is not None:
        await tx.run(Q.save_position, name=name, after=position)
    elif before is not None:
        await tx.run(Q.reset_position, name=name)
