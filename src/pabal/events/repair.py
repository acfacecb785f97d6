"""Keeps the lane's narrow tables true to event_queue, whatever somebody did to either by hand."""

from pabal.core.log import get_logger
from pabal.db.queries import load_queries
from pabal.db.tx import Tx

Q = load_queries(__file__)
log = get_logger()


async def advance_ordered_events(tx: Tx, batch: int) -> int:
    """See to it that everybody who stands in a line will be called."""
    return await tx.run(Q.advance_ordered_events, batch=batch)


async def repair_event_tables(tx: Tx, batch: int) -> int:
    """Compare and put right; every row counted here is one that something broke."""
    broken = {
        "unline": await tx.value(Q.remove_stale_order, batch=batch),
        "reline": await tx.run(Q.repair_order_leases, batch=batch),
        "strike": await tx.run(Q.delete_stale_due, batch=batch),
        "free": await tx.run(Q.requeue_events_without_lease, batch=batch),
        "owe": await tx.run(Q.add_missing_due, batch=batch),
        "recount": await tx.run(Q.recount_leases, batch=batch),
    }
    if any(broken.values()):
        log.warning("lane mended", lane="events", **broken)
    return max(broken.values())
