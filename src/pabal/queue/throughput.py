"""Throughput: how many rows of each lane ended per minute, and how.

Counted by the process that wrote the outcome, after its commit:

* done: an event or notification settled as done; a notification suppressed at dispatch; a message that its bot answered
  or acknowledged, whichever is first.
* failed: an attempt that will be retried; an event whose lease expired; a callback that was refused, did not reach the
  server, or stayed unconfirmed; a message that expired.
* dead: an event or notification settled as dead; an event whose lease expired on its last attempt.

Not counted: rows that were snoozed, released, cancelled, or expired before the first attempt; a notification's attempt
whose worker died; changes by plain SQL.

Counts are kept in memory and added to the current minute by one statement every two seconds, so a row that ends late in
a minute may count for the next one. A process that stops writes its remaining counts; one that is killed loses the last
seconds.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pabal.core.errors import PabalError
from pabal.core.log import get_logger
from pabal.db.pool import Database
from pabal.db.queries import load_queries
from pabal.db.tx import CountedOutcome, Tx
from pabal.db.waiting import wait_with_timeout

Q = load_queries(__file__)
log = get_logger()

FLUSH_INTERVAL = timedelta(seconds=2)
THROUGHPUT_RETENTION = timedelta(days=1)
LANE_NAMES = ("relay", "events", "notifications")
COUNTED_KINDS: tuple[CountedOutcome, ...] = ("done", "failed", "dead")
FLUSH_TIMEOUT = 1.0
"""Seconds a stopping process spends on writing its remaining counts."""


@dataclass(frozen=True, slots=True)
class ThroughputMinute:
    """The rows of one lane that ended in one minute; `elapsed` is how much of the minute has passed."""

    lane: str
    minute: datetime
    done: int
    failed: int
    dead: int
    elapsed: timedelta


class ThroughputCounter:
    """Counts outcomes in one process and adds them to the table."""

    def __init__(self, db: Database, flush_interval: timedelta = FLUSH_INTERVAL) -> None:
        self._db = db
        self._flush_interval = flush_interval
        self._counts: Counter[tuple[str, CountedOutcome]] = Counter()
        self._has_counts = asyncio.Event()
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def add_counts(self, counts: Mapping[tuple[str, CountedOutcome], int]) -> None:
        """Add a transaction's counts, after its commit."""
        self._counts.update(counts)
        self._has_counts.set()

    async def open(self) -> None:
        self._task = asyncio.create_task(self._flush_loop(), name="throughput")

    async def close(self) -> None:
        """Write the remaining counts and stop: a command may end right after it counted."""
        self._stopping.set()
        self._has_counts.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=FLUSH_TIMEOUT)
            self._task.cancel()

    async def _flush_loop(self) -> None:
        while True:
            await self._has_counts.wait()
            stopping = await wait_with_timeout(self._stopping, self._flush_interval)
            await self._flush()
            if stopping:
                return

    async def _flush(self) -> None:
        self._has_counts.clear()
        counts, self._counts = self._counts, Counter()
        lanes = sorted({lane for lane, _ in counts})
        if not lanes:
            return
        columns = {kind: [counts[lane, kind] for lane in lanes] for kind in COUNTED_KINDS}
        try:
            async with self._db.autocommit() as tx:
                await tx.run(Q.add_counts, lanes=lanes, **columns)
        except PabalError as error:
            log.warning("throughput not recorded", error=str(error))
            self.add_counts(counts)


async def last_hour_throughput(tx: Tx) -> dict[str, Sequence[ThroughputMinute]]:
    """The last sixty minutes of each lane, current minute last."""
    minutes = await tx.all(ThroughputMinute, Q.last_hour, lanes=[*LANE_NAMES])
    return {lane: [minute for minute in minutes if minute.lane == lane] for lane in LANE_NAMES}


async def purge_throughput(tx: Tx, batch: int) -> int:
    """Delete minutes older than a day; returns how many."""
    return await tx.run(Q.purge, keep=THROUGHPUT_RETENTION, batch=batch)
