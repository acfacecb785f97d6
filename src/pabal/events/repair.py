"""Repair the narrow tables of the lane if they disagree with event_queue, for example after manual changes."""

from pabal.core.log import get_logger
from pabal.db.queries import load_queries
from pabal.db.tx import Tx

Q = load_queries(__file__)
log = get_logger()


async def advance_ordered_events(tx: Tx, batch: int) -> int:
    """Make sure that every event with an ordering key becomes due after its predecessor."""
    return await tx.run(Q.advance_ordered_events, batch=batch)


async def repair_event_tables(tx: Tx, batch: int) -> int:
    """Compare and repair; return the largest number of rows repaired by one step, to tell whether to run again."""
    repaired = {
        "stale_order": await tx.value(Q.remove_stale_order, batch=batch),
        "order_leases": await tx.run(Q.repair_order_leases, batch=batch),
        "stale_due": await tx.run(Q.delete_stale_due, batch=batch),
        "without_lease": await tx.run(Q.requeue_events_without_lease, batch=batch),
        "missing_due": await tx.run(Q.add_missing_due, batch=batch),
        "lease_counts": await tx.run(Q.recount_leases, batch=batch),
    }
    if any(repaired.values()):
        log.warning("event tables repaired", **repaired)
    return max(repaired.values())
