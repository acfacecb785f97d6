"""Repair the narrow tables of the lane if they disagree with event_queue, for example after manual changes.

A run compares a slice of each table and remembers where it ended, so it costs the same for a thousand rows and for
millions. After the end of a table, the next run begins again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class RepairedTable:
    """A table that is read in slices: the statements that compare a slice, find its end, and repair rows by id."""

    name: str
    window: int
    check: Query
    find_position: Query
    repairs: Sequence[Query]


REPAIRED_TABLES = (
    RepairedTable(
        "event_order", WINDOW, Q.check_order, Q.find_order_position, (Q.remove_stale_order, Q.repair_order_leases)
    ),
    RepairedTable("event_due", WINDOW, Q.check_due, Q.find_due_position, (Q.delete_stale_due, Q.add_missing_due)),
    RepairedTable(
        "event_queue",
        WINDOW,
        Q.check_events,
        Q.find_event_position,
        (Q.requeue_events_without_lease, Q.add_missing_due, Q.list_missing_plain_claims),
    ),
    RepairedTable("event_leases", LEASE_WINDOW, Q.check_leases, Q.find_lease_position, (Q.recount_leases,)),
)


@dataclass(frozen=True, slots=True)
class RepairPosition:
    """The last id of a table that was compared."""

    name: str
    after: UUID


async def advance_ordered_events(tx: Tx, batch: int) -> int:
    """Make sure that every event with an ordering key becomes due after its predecessor."""
    return await tx.run(Q.advance_ordered_events, batch=batch)


async def repair_event_tables(tx: Tx, _batch: int, tables: Sequence[RepairedTable] = REPAIRED_TABLES) -> int:
    """Compare the next slice of each table and repair it; return the number of damaged rows."""
    positions = {position.name: position.after for position in await tx.all(RepairPosition, Q.list_positions)}
    damaged = {table.name: await _repair_slice(tx, table, positions.get(table.name, FIRST_ID)) for table in tables}
    if any(damaged.values()):
        log.warning("event tables repaired", **damaged)
    return sum(damaged.values())


async def _repair_slice(tx: Tx, table: RepairedTable, after: UUID) -> int:
    ids = await tx.column(table.check, after=after, window=table.window)
    for repair in table.repairs if ids else ():
        await tx.run(repair, ids=ids)
    position = await tx.value(table.find_position, after=after, window=table.window)
    if position is not None:
        await tx.run(Q.save_position, name=table.name, after=position)
    elif after != FIRST_ID:
        await tx.run(Q.reset_position, name=table.name)
    return len(ids)
