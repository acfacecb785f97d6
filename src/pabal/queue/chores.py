"""Chores: periodic upkeep, one process at a time, in batches small enough that nobody notices."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic

from pabal.core.errors import PabalError, Unavailable
from pabal.core.log import get_logger
from pabal.db.pool import Database
from pabal.db.queries import load_queries
from pabal.db.tx import Tx

Q = load_queries(__file__)
log = get_logger()

CHORE_BATCH_SIZE = 5000
CHECK_INTERVAL = 1.0
OVERDUE_AFTER = timedelta(minutes=1)
"""How long after its time a chore is overdue."""
PAUSE_FACTOR = 4
"""How many times as long as a full batch took the next is put off: a purge of millions leaves the disk to others."""


@dataclass(frozen=True, slots=True)
class Chore:
    """Something to do every so often. `do` takes care of at most `batch` rows and says how many it did."""

    name: str
    interval: timedelta
    run: Callable[[Tx, int], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class ChoreName:
    name: str


@dataclass(frozen=True, slots=True)
class ChoreRun:
    """How a chore last ran, wherever it did. `since` is how long ago it began, `error` why it failed, if it did."""

    name: str
    interval: timedelta
    started_ago: timedelta | None
    rows: int | None
    error: str | None

    @property
    def is_overdue(self) -> bool:
        """Whether nobody has begun it again although its time is long over; one that never ran is not late yet."""
        return self.started_ago is not None and self.started_ago > self.interval + OVERDUE_AFTER


class ChoreRunner:
    """Runs what is due, wherever it is due first."""

    def __init__(self, db: Database, chores: Sequence[Chore], batch: int = CHORE_BATCH_SIZE) -> None:
        self._db = db
        self._chores = {chore.name: chore for chore in chores}
        self._batch = batch
        self._continuing: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Look for due chores until cancelled. A database that is away is waited for."""
        try:
            while True:
                try:
                    await self._run_due_once()
                except Unavailable as error:
                    log.warning("chores wait", error=str(error))
                except Exception:  # nobody else would notice that the house is no longer kept
                    log.exception("chores failed")
                await asyncio.sleep(CHECK_INTERVAL * random.uniform(0.8, 1.2))  # noqa: S311 spreads the looks of many processes
        finally:
            for task in self._continuing.values():
                task.cancel()

    async def run_due(self) -> list[str]:
        """Do everything that is due now, to its end; returns what this process did."""
        done = await self._run_due_once()
        await asyncio.gather(*self._continuing.values())
        return done

    async def list_runs(self, tx: Tx) -> list[ChoreRun]:
        """How each of them last ran, in their order."""
        return await tx.all(ChoreRun, Q.list_runs, **self._intervals)

    @property
    def _intervals(self) -> dict[str, object]:
        return {"names": [*self._chores], "everies": [chore.interval for chore in self._chores.values()]}

    async def _run_due_once(self) -> list[str]:
        async with self._db.autocommit() as tx:
            due = await tx.all(ChoreName, Q.list_due, **self._intervals)
        return [
            row.name
            for row in due
            if row.name not in self._continuing and await self._run_chore(self._chores[row.name])
        ]

    async def _run_chore(self, chore: Chore) -> bool:
        """Do a batch of it. What is left after that is done beside the other chores: millions of rows take hours."""
        async with self._db.autocommit() as tx:
            if not await tx.value(Q.begin_run, name=chore.name, every=chore.interval):
                return False
        began = monotonic()
        rows, error = await self._run_batch(chore)
        if rows < self._batch:
            await self._finish(chore, rows, error)
            return True
        task = asyncio.create_task(self._continue_chore(chore, rows, monotonic() - began), name=f"chore {chore.name}")
        self._continuing[chore.name] = task
        task.add_done_callback(lambda _: self._continuing.pop(chore.name))
        return True

    async def _continue_chore(self, chore: Chore, rows: int, took: float) -> None:
        done, error = self._batch, None
        while done >= self._batch:
            await asyncio.sleep(PAUSE_FACTOR * took)
            began = monotonic()
            done, error = await self._run_batch(chore)
            rows, took = rows + done, monotonic() - began
        await self._finish(chore, rows, error)

    async def _run_batch(self, chore: Chore) -> tuple[int, str | None]:
        """Take care of a batch: how many rows, and why it failed. That is seen, and stops no other chore."""
        try:
            async with self._db.transaction() as tx:
                return await chore.run(tx, self._batch) if await tx.value(Q.lock_run, name=chore.name) else 0, None
        except PabalError as failure:
            log.error("chore failed", chore=chore.name, error=str(failure))
            return 0, str(failure)
        except Exception as failure:
            log.exception("chore failed", chore=chore.name)
            return 0, f"{type(failure).__name__}: {failure}"

    async def _finish(self, chore: Chore, rows: int, error: str | None) -> None:
        if rows:
            log.info("chore done", chore=chore.name, rows=rows)
        try:
            async with self._db.autocommit() as tx:
                await tx.run(Q.finish_run, name=chore.name, rows=rows, error=error)
        except PabalError as failure:  # it is done all the same
            log.warning("chore unwritten", chore=chore.name, error=str(failure))
