"""Failing pushes that hold back later events of their ordering key: they become dead letters after ten minutes.

A push that fails while others wait behind it is decided when it is settled; this chore finds those that others came to
wait for later. Subscriptions with `on_blocked` = `hold` are left alone.
"""

from pabal.core.log import get_logger
from pabal.db.doorbell.channels import Channel
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.events.push.retry_schedule import BLOCKED_LIMIT

Q = load_queries(__file__)
log = get_logger()


async def end_blocking_events(tx: Tx, batch: int) -> int:
    """End failing pushes that block an ordering key; return how many."""
    ended = await tx.run(Q.end_blocking_events, blocked=BLOCKED_LIMIT, batch=batch)
    if ended:
        log.warning("blocked ordering keys released", events=ended)
        tx.notify(Channel.EVENTS)
    return ended
