"""Create the deliveries of large broadcasts, in slices.

The publisher's transaction creates up to 200 deliveries itself. For more receivers it records their
names, the fan-out of the event.
"""

from dataclasses import dataclass
from uuid import UUID

from pabal.db.doorbell.channels import Channel
from pabal.db.queries import load_queries
from pabal.db.tx import Tx

Q = load_queries(__file__)

MAX_BYTES_PER_RUN = 32 << 20
"""Stop after payloads of this size. 5,000 deliveries of 256 KB exceeded the statement timeout in every run."""


@dataclass(frozen=True, slots=True)
class FanOutSlice:
    """How many deliveries a statement created, and the size of their payloads as they are stored."""

    deliveries: int
    bytes: int


async def expand_broadcasts(tx: Tx, batch: int) -> int:
    """Create up to `batch` missing deliveries, or fewer with large payloads, of the oldest broadcasts first.

    Returns how many.
    """
    created = size = 0
    while created < batch and size < MAX_BYTES_PER_RUN:
        created_slice = await tx.maybe(
            FanOutSlice, Q.expand_broadcast, limit=batch - created, max_bytes=MAX_BYTES_PER_RUN - size
        )
        if created_slice is None:
            break
        created, size = created + created_slice.deliveries, size + created_slice.bytes
    if created:
        tx.notify(Channel.EVENTS)
    return created


async def stop_fan_out(tx: Tx, event_id: UUID) -> bool:
    """Create no more deliveries of a broadcast; return whether any were missing."""
    return await tx.run(Q.delete_fan_out, id=event_id) > 0
