"""The census: how much each lane carries. One query, kept for a moment, feeds health, metrics and console."""

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from pabal.core.errors import PabalError
from pabal.db.pool import Database
from pabal.db.queries import load_queries

Q = load_queries(__file__)

CACHE_SECONDS = 1.0
"""Seconds a count is good for: a hundred probes a second still cost one query."""
MAX_STALE_SECONDS = 10.0
"""Seconds after which a count is too old to be shown to somebody in place of the present one."""
UNHANDLED_AFTER = timedelta(seconds=10)
"""How long an event lies before it counts as unhandled: somebody may be about to pull it."""
MAX_UNHANDLED_COUNT = 1000
"""Unhandled events that are counted of one type and priority."""


@dataclass(frozen=True, slots=True)
class LaneStats:
    """What one lane carries right now."""

    name: str
    waiting: int
    oldest_due: timedelta
    in_flight: int
    dead: int


@dataclass(frozen=True, slots=True)
class UnhandledEvents:
    """How many events of a service with handlers no handler takes."""

    service: str
    count: int


@dataclass(frozen=True, slots=True)
class HubStats:
    """What all lanes carry."""

    lanes: tuple[LaneStats, ...]
    active_accounts: int
    unhandled: tuple[UnhandledEvents, ...]

    def lane(self, name: str) -> LaneStats:
        return next(lane for lane in self.lanes if lane.name == name)


class StatsReader:
    def __init__(self, db: Database) -> None:
        self._db = db
        self._last: tuple[float, HubStats] | None = None
        self._lock = asyncio.Lock()
        self._refresh_task: asyncio.Task[None] | None = None

    async def read(self) -> HubStats:
        """The present count, at most a second old. Raises Unavailable when the database is away."""
        async with self._lock:
            now = time.monotonic()
            if self._last is not None and now - self._last[0] < CACHE_SECONDS:
                return self._last[1]
            async with self._db.autocommit() as tx:
                count = HubStats(
                    tuple(await tx.all(LaneStats, Q.lane_stats)),
                    await tx.value(Q.count_active_accounts),
                    tuple(
                        await tx.all(UnhandledEvents, Q.count_unhandled, left=UNHANDLED_AFTER, most=MAX_UNHANDLED_COUNT)
                    ),
                )
            self._last = (now, count)
            return count

    async def read_cached(self) -> HubStats:
        """The last count, if it is only seconds old, while the next is taken: a million that wait take a while."""
        if self._last is None or time.monotonic() - self._last[0] >= MAX_STALE_SECONDS:
            return await self.read()
        if self._refresh_task is None or self._refresh_task.done():
            self._refresh_task = asyncio.create_task(self._refresh(), name="census")
        return self._last[1]

    async def _refresh(self) -> None:
        with suppress(PabalError):  # whoever looks next is told
            await self.read()

    def register_gauges(self, meter: Meter) -> None:
        """Let the meter read the last count; reading it asks nothing of the database."""
        for name, unit, told, number in GAUGES:
            meter.create_observable_gauge(f"pabal.lane.{name}", [self._gauge_callback(number)], unit, told)
        meter.create_observable_gauge(
            "pabal.events.unhandled",
            [self._observe_unhandled],
            "1",
            "Due events whose type no handler of their service takes.",
        )

    def _observe_unhandled(self, _options: CallbackOptions) -> Iterable[Observation]:
        left = self._last[1].unhandled if self._last else ()
        return [Observation(each.count, {"service": each.service}) for each in left]

    def _gauge_callback(
        self, number: Callable[[LaneStats], float]
    ) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def read(_options: CallbackOptions) -> Iterable[Observation]:
            lanes = self._last[1].lanes if self._last else ()
            return [Observation(number(lane), {"lane": lane.name}) for lane in lanes]

        return read


GAUGES: tuple[tuple[str, str, str, Callable[[LaneStats], float]], ...] = (
    ("waiting", "1", "Rows that are due and wait.", lambda lane: lane.waiting),
    ("oldest_due", "s", "How long the longest waiting row has been due.", lambda lane: lane.oldest_due.total_seconds()),
    ("in_flight", "1", "Rows somebody holds.", lambda lane: lane.in_flight),
    ("dead", "1", "Rows that ended in failure and wait for a person.", lambda lane: lane.dead),
)
