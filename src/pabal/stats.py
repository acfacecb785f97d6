"""Lane statistics: how many rows wait, are in flight or dead. One cached query feeds health, metrics and console."""

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
from pabal.db.tx import Tx

Q = load_queries(__file__)

CACHE_SECONDS = 1.0
"""A hundred health checks a second cost one query."""
MAX_STALE_SECONDS = 10.0
"""Older statistics are not shown while new ones are read."""
UNHANDLED_AFTER = timedelta(seconds=10)
"""How long an event is due before it counts as unhandled: a consumer may be about to pull it."""
MAX_UNHANDLED_COUNT = 1000
"""Unhandled events counted per type and priority."""


@dataclass(frozen=True, slots=True)
class LaneStats:
    """Row counts of one lane."""

    name: str
    waiting: int
    oldest_due: timedelta
    in_flight: int
    dead: int


@dataclass(frozen=True, slots=True)
class UnhandledEvents:
    """Due events of a service with handlers whose type no handler takes."""

    service: str
    count: int


@dataclass(frozen=True, slots=True)
class ChoreAge:
    """How long ago a chore last succeeded, in any process."""

    name: str
    age: timedelta


@dataclass(frozen=True, slots=True)
class HubStats:
    """Statistics of all lanes."""

    lanes: tuple[LaneStats, ...]
    active_accounts: int
    unhandled: tuple[UnhandledEvents, ...]
    chores: tuple[ChoreAge, ...] = ()
    unsealed_for: timedelta = timedelta()

    def lane(self, name: str) -> LaneStats:
        return next(lane for lane in self.lanes if lane.name == name)


async def read_stats(tx: Tx) -> HubStats:
    """Count the rows of all lanes."""
    return HubStats(
        tuple(await tx.all(LaneStats, Q.lane_stats)),
        await tx.value(Q.count_active_accounts),
        tuple(await tx.all(UnhandledEvents, Q.count_unhandled, min_age=UNHANDLED_AFTER, max_count=MAX_UNHANDLED_COUNT)),
        tuple(await tx.all(ChoreAge, Q.list_chore_ages)),
        await tx.value(Q.unsealed_for),
    )


class StatsReader:
    """Reads the statistics and keeps the last ones."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._last: tuple[float, HubStats] | None = None
        self._lock = asyncio.Lock()
        self._refresh_task: asyncio.Task[None] | None = None

    async def read(self) -> HubStats:
        """Statistics that are at most a second old. Raises Unavailable if the database is not available."""
        async with self._lock:
            now = time.monotonic()
            if self._last is not None and now - self._last[0] < CACHE_SECONDS:
                return self._last[1]
            async with self._db.autocommit() as tx:
                stats = await read_stats(tx)
            self._last = (now, stats)
            return stats

    async def read_cached(self) -> HubStats:
        """The last statistics if they are seconds old, while new ones are read in the background.

        Counting a million waiting rows takes a while.
        """
        if self._last is None or time.monotonic() - self._last[0] >= MAX_STALE_SECONDS:
            return await self.read()
        if self._refresh_task is None or self._refresh_task.done():
            self._refresh_task = asyncio.create_task(self._refresh(), name="refresh stats")
        return self._last[1]

    async def _refresh(self) -> None:
        with suppress(PabalError):  # the next read raises it
            await self.read()

    def register_gauges(self, meter: Meter) -> None:
        """Export the last statistics as gauges; collecting metrics runs no query."""
        for name, unit, description, measure in GAUGES:
            meter.create_observable_gauge(f"pabal.lane.{name}", [self._gauge_callback(measure)], unit, description)
        meter.create_observable_gauge(
            "pabal.events.unhandled",
            [self._observe_unhandled],
            "1",
            "Due events whose type no handler of their service takes.",
        )

        meter.create_observable_gauge(
            "pabal.audit.unsealed_age",
            [lambda _: [Observation(self._last[1].unsealed_for.total_seconds())] if self._last else []],
            "s",
            "Time that the first audit entry after the last seal has waited for its seal.",
        )
        meter.create_observable_gauge(
            "pabal.chore.success_age", [self._observe_chores], "s", "Time since a chore last succeeded, in any process."
        )

    def _observe_chores(self, _options: CallbackOptions) -> Iterable[Observation]:
        chores = self._last[1].chores if self._last else ()
        return [Observation(chore.age.total_seconds(), {"chore": chore.name}) for chore in chores]

    def _observe_unhandled(self, _options: CallbackOptions) -> Iterable[Observation]:
        services = self._last[1].unhandled if self._last else ()
        return [Observation(unhandled.count, {"service": unhandled.service}) for unhandled in services]

    def _gauge_callback(
        self, measure: Callable[[LaneStats], float]
    ) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_options: CallbackOptions) -> Iterable[Observation]:
            lanes = self._last[1].lanes if self._last else ()
            return [Observation(measure(lane), {"lane": lane.name}) for lane in lanes]

        return observe


GAUGES: tuple[tuple[str, str, str, Callable[[LaneStats], float]], ...] = (
    ("waiting", "1", "Rows that are due and not claimed.", lambda lane: lane.waiting),
    ("oldest_due", "s", "Time since the longest waiting row became due.", lambda lane: lane.oldest_due.total_seconds()),
    ("in_flight", "1", "Rows that are claimed and not settled.", lambda lane: lane.in_flight),
    ("dead", "1", "Rows that failed for good and are not resolved.", lambda lane: lane.dead),
)
