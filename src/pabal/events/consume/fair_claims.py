"""Claims of one service's events that leave room for every event type.

A claim takes the longest due events, so a long queue of one type would fill all slots. Half of the slots are filled
this way; the other half is shared by type, and a type that has nothing in flight comes first.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic

from pabal.db.doorbell.doorbell import POLL_INTERVAL
from pabal.db.pool import Database
from pabal.db.queries import load_queries
from pabal.events.consume.lane import LANE, ClaimedEvent, EventClaimFilter
from pabal.events.events import like_patterns
from pabal.queue.worker import ScheduledClaim, Settled

Q = load_queries(__file__)

MAX_TYPES_PER_ROUND = 16


class FairClaims:
    """Schedules the claims of a worker for one service, and counts its events in flight by type."""

    def __init__(
        self, db: Database, service: str, concurrency: int, handle: Callable[[ClaimedEvent], Awaitable[Settled]]
    ) -> None:
        self._db = db
        self._service = service
        self._concurrency = concurrency
        self._handle = handle
        self._in_flight: Counter[str] = Counter()
        self._has_rules = True
        self._next_check = 0.0

    def is_concerned(self, topic: str) -> bool:
        """Whether a wakeup concerns the service. If it has rules, an event for any service may match one of them.

        Polling under load does not ask again whether there are rules.
        """
        if not topic:
            self._next_check = 0.0
        return not topic or topic == self._service or self._has_rules

    async def handle(self, event: ClaimedEvent) -> Settled:
        self._in_flight[event.event_type] += 1
        try:
            return await self._handle(event)
        finally:
            self._in_flight[event.event_type] -= 1
            if not self._in_flight[event.event_type]:
                del self._in_flight[event.event_type]

    async def schedule(self) -> Sequence[ScheduledClaim[EventClaimFilter]]:
        if monotonic() >= self._next_check:
            self._next_check = monotonic() + POLL_INTERVAL.total_seconds()
            async with self._db.autocommit() as tx:
                self._has_rules = await tx.value(Q.has_rules, service=self._service)
        free_for_any = self._concurrency // 2 - self._in_flight.total()
        if free_for_any > 0:
            return [ScheduledClaim(EventClaimFilter(self._service), free_for_any)]
        async with self._db.autocommit() as tx:
            event_types = await LANE.due_event_types(tx, self._service)
        return share_by_type(self._service, event_types, self._in_flight, self._concurrency)


def share_by_type(
    service: str, event_types: Sequence[str], in_flight: Counter[str], concurrency: int
) -> list[ScheduledClaim[EventClaimFilter]]:
    """Give each type as many slots as then stay free, the least busy type first."""
    free = concurrency - in_flight.total()
    claims: list[ScheduledClaim[EventClaimFilter]] = []
    for event_type in sorted(event_types, key=lambda event_type: in_flight[event_type])[:MAX_TYPES_PER_ROUND]:
        capacity = slot_capacity(free, in_flight[event_type])
        free -= capacity
        claims.append(ScheduledClaim(EventClaimFilter(service, like_patterns([event_type])), capacity))
    return claims


def slot_capacity(free: int, in_flight: int) -> int:
    """How many more slots one of several competitors may use: in total as many as then stay free, but at least one.

    Slow competitors get less as fewer slots are free. Of 100 slots, one uses 50 at most, two use 75, three 87.
    """
    return max((free - in_flight) // 2, 0 if in_flight else min(1, free), 0)
