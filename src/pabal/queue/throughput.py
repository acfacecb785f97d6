"""The pulse: what became of each lane's rows, minute by minute.

What is counted, each when its transaction has committed, by the process that wrote it down:

* done: an event or notification that was settled as done, a notification that was suppressed when it was to be sent, a
  message that its bot answered or acknowledged, whichever came first.
* failed: an attempt that is to be made again; an event whose holder's lease ended; a callback that was refused, not
  reached, or never heard of again; a message that expired.
* dead: an event or notification that was settled as dead, after its last attempt or at once; an event whose lease ended
  with its last attempt.

Not counted: what was snoozed, given back, cancelled or expired before anybody tried; a notification's attempt whose
worker died; what plain SQL does to the tables.

Counting is a number in memory. Every two seconds, while there is something, one statement adds it to the minute that is
then, so what ended in a minute's last moments may stand in the next. A process that stops adds what it has left; one
that is killed takes the last seconds with it.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pabal.core.errors import PabalError
from pabal.core.log import get_logger
from pabal.db.doorbell import wait_with_timeout
from pabal.db.pool import Database
from pabal.db.queries import load_queries
from pabal.db.tx import Tx

Q = load_queries(__file__)
log = get_logger()

FLUSH_INTERVAL = timedelta(seconds=2)
THROUGHPUT_RETENTION = timedelta(days=1)
LANE_NAMES = ("relay", "events", "notifications")
FLUSH_TIMEOUT = 1.0
"""Seconds a process that stops takes to add what it has left."""


@dataclass(frozen=True, slots=True)
class ThroughputMinute:
    """What became of a lane's rows in one minute; `lasted` is how much of it has passed."""

    lane: str
    minute: datetime
    done: int
    failed: int
    dead: int
    elapsed: timedelta


class ThroughputCounter:
    """Counts for one process, and adds what it counted to everybody's."""

    def __init__(self, db: Database, flush_interval: timedelta = FLUSH_INTERVAL) -> None:
        self._db = db
        self._flush_interval = flush_interval
        self._counts: Counter[tuple[str, str]] = Counter()
        self._has_counts = asyncio.Event()
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def add_counts(self, counts: Mapping[tuple[str, str], int]) -> None:
        """Take what a transaction counted, after its commit."""
        self._counts.update(counts)
        self._has_counts.set()

    async def open(self) -> None:
        self._task = asyncio.create_task(self._flush_loop(), name="pulse")

    async def close(self) -> None:
        """Add what is left, and stop: a command counts and ends at once."""
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
        counted, self._counts = self._counts, Counter()
        lanes = sorted({lane for lane, _ in counted})
        if not lanes:
            return
        numbers = {what: [counted[lane, what] for lane in lanes] for what in ("done", "failed", "dead")}
        try:
            async with self._db.autocommit() as tx:
                await tx.run(Q.add_counts, lanes=lanes, **numbers)
        except PabalError as error:
            log.warning("pulse waits", error=str(error))
            self.add_counts(counted)


async def last_hour_throughput(tx: Tx) -> dict[str, Sequence[ThroughputMinute]]:
    """The last sixty minutes of each lane, the present one last."""
    beats = await tx.all(ThroughputMinute, Q.last_hour, lanes=[*LANE_NAMES])
    return {lane: [beat for beat in beats if beat.lane == lane] for lane in LANE_NAMES}


async def purge_throughput(tx: Tx, batch: int) -> int:
    """Forget what is older than a day; how many minutes."""
    return await tx.run(Q.purge, keep=THROUGHPUT_RETENTION, batch=batch)
