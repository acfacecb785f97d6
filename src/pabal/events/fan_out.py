"""Create the deliveries of large broadcasts, in slices.

The publisher's transaction creates up to 200 deliveries itself. For more receivers it records their
names, the fan-out of the event.
"""

from uuid import UUID

from pabal.db.channels import Channel
from pabal.db.queries import load_queries
from pabal.db.tx import Tx

Q = load_queries(__file__)


async def expand_broadcasts(tx: Tx, batch: int) -> int:
    """Create up to `batch` missing deliveries, of the oldest broadcasts first; return how many."""
    created = 0
    while created < batch and (count := await tx.value(Q.expand_broadcast, limit=batch - created)):
        created += count
    if created:
        tx.notify(Channel.EVENTS)
    return created


async def stop_fan_out(tx: Tx, event_id: UUID) -> bool:
    """Create no more deliveries of a broadcast; return whether any were missing."""
    return await tx.run(Q.delete_fan_out, id=event_id) > 0
