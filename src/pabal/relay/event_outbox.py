"""Publishes the relay's rare events from their outbox: failed callbacks and pairings.

Statements of the chat note an event there and write no table of the events, which another program may have locked.
"""

from pabal.db.doorbell.channels import Channel
from pabal.db.queries import load_queries
from pabal.db.tx import Tx

Q = load_queries(__file__)


async def publish_queued_events(tx: Tx, batch: int) -> int:
    """Publish at most `batch` events in the order in which they happened; returns how many."""
    published: int = await tx.value(Q.publish_queued_events, batch=batch)
    if published:
        tx.notify(Channel.EVENTS)
    return published
