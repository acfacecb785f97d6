"""Keeps the lane's narrow tables true to event_queue, whatever somebody did to either by hand."""

from pabal.core.log import get_logger
from pabal.db.queries import beside
from pabal.db.tx import Tx

Q = beside(__file__)
log = get_logger()


async def call_lines(tx: Tx, batch: int) -> int:
    """See to it that everybody who stands in a line will be called."""
    return await tx.run(Q.call_lines, batch=batch)


async def mend(tx: Tx, batch: int) -> int:
    """Compare and put right; every row counted here is one that something broke."""
    broken = {
        "unline": await tx.value(Q.unline, batch=batch),
        "reline": await tx.run(Q.reline, batch=batch),
        "strike": await tx.run(Q.strike, batch=batch),
        "free": await tx.run(Q.free, batch=batch),
        "owe": await tx.run(Q.owe, batch=batch),
        "recount": await tx.run(Q.recount, batch=batch),
    }
    if any(broken.values()):
        log.warning("lane mended", lane="events", **broken)
    return max(broken.values())
