"""Whether services have published events: what the console's first page shows."""

from dataclasses import dataclass

from pabal.db.queries import load_queries
from pabal.db.tx import Tx

Q = load_queries(__file__)

EVENTS_READ = 1000
"""How many events are read to find one that was received."""


@dataclass(frozen=True, slots=True)
class EventProgress:
    """A service published an event; one was received."""

    has_event: bool
    has_delivery: bool


async def read_event_progress(tx: Tx) -> EventProgress:
    return await tx.one(EventProgress, Q.event_progress, limit=EVENTS_READ)


async def were_events_published(tx: Tx) -> bool:
    """Whether a service published an event."""
    return await tx.value(Q.events_were_published)
