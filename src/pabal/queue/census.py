"""The census: how much each lane carries. One query, kept for a moment, feeds health, metrics and console."""

import asyncio
import time
from dataclasses import dataclass
from datetime import timedelta

from pabal.db.pool import Database
from pabal.db.queries import beside

Q = beside(__file__)

FRESH = 1.0
"""Seconds a count is good for: a hundred probes a second still cost one query."""


@dataclass(frozen=True, slots=True)
class LaneCount:
    """What one lane carries right now."""

    name: str
    waiting: int
    oldest_due: timedelta
    in_flight: int
    dead: int


@dataclass(frozen=True, slots=True)
class Count:
    """What all lanes carry."""

    lanes: tuple[LaneCount, ...]
    active_accounts: int

    def lane(self, name: str) -> LaneCount:
        return next(lane for lane in self.lanes if lane.name == name)


class Census:
    def __init__(self, db: Database) -> None:
        self._db = db
        self._last: tuple[float, Count] | None = None
        self._counting = asyncio.Lock()

    async def take(self) -> Count:
        """The present count, at most a second old. Raises Unavailable when the database is away."""
        async with self._counting:
            now = time.monotonic()
            if self._last is not None and now - self._last[0] < FRESH:
                return self._last[1]
            async with self._db.autocommit() as tx:
                count = Count(tuple(await tx.all(LaneCount, Q.lanes)), await tx.value(Q.active_accounts))
            self._last = (now, count)
            return count
