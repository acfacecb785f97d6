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
from pabal.db.doorbell import happens
from pabal.db.pool import Database
from pabal.db.queries import beside
from pabal.db.tx import Tx

Q = beside(__file__)
log = get_logger()

EVERY = timedelta(seconds=2)
KEEP = timedelta(days=1)
LANES = ("relay", "events", "notifications")
FAREWELL = 1.0
"""Seconds a process that stops takes to add what it has left."""


@dataclass(frozen=True, slots=True)
class Beat:
    """What became of a lane's rows in one minute; `lasted` is how much of it has passed."""

    lane: str
    minute: datetime
    done: int
    failed: int
    dead: int
    lasted: timedelta


class Pulse:
    """Counts for one process, and adds what it counted to everybody's."""

    def __init__(self, db: Database, every: timedelta = EVERY) -> None:
        self._db = db
        self._every = every
        self._counted: Counter[tuple[str, str]] = Counter()
        self._something = asyncio.Event()
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def count(self, counted: Mapping[tuple[str, str], int]) -> None:
        """Take what a transaction counted, after its commit."""
        self._counted.update(counted)
        self._something.set()

    async def open(self) -> None:
        self._task = asyncio.create_task(self._go_on(), name="pulse")

    async def close(self) -> None:
        """Add what is left, and stop: a command counts and ends at once."""
        self._stopping.set()
        self._something.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=FAREWELL)
            self._task.cancel()

    async def _go_on(self) -> None:
        while True:
            await self._something.wait()
            stopping = await happens(self._stopping, self._every)
            await self._add()
            if stopping:
                return

    async def _add(self) -> None:
        self._something.clear()
        counted, self._counted = self._counted, Counter()
        lanes = sorted({lane for lane, _ in counted})
        if not lanes:
            return
        numbers = {what: [counted[lane, what] for lane in lanes] for what in ("done", "failed", "dead")}
        try:
            async with self._db.autocommit() as tx:
                await tx.run(Q.add, lanes=lanes, **numbers)
        except PabalError as error:
            log.warning("pulse waits", why=str(error))
            self.count(counted)


async def hour(tx: Tx) -> dict[str, Sequence[Beat]]:
    """The last sixty minutes of each lane, the present one last."""
    beats = await tx.all(Beat, Q.hour, lanes=[*LANES])
    return {lane: [beat for beat in beats if beat.lane == lane] for lane in LANES}


async def forget(tx: Tx, batch: int) -> int:
    """Forget what is older than a day; how many minutes."""
    return await tx.run(Q.forget, keep=KEEP, batch=batch)
