"""Chores: periodic maintenance. One process runs a chore at a time, in small batches."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic

from pabal.core.backoff import spread
from pabal.core.error_text import clean_error_text
from pabal.core.errors import PabalError, Unavailable
from pabal.core.log import get_logger
from pabal.db.pool import Database
from pabal.db.queries import Query, load_queries
from pabal.db.tx import Tx

Q = load_queries(__file__)
log = get_logger()

CHORE_BATCH_SIZE = 5000
CHECK_INTERVAL = 1.0
OVERDUE_INTERVALS = 3
OVERDUE_AFTER = timedelta(minutes=1)
"""A chore without a success for this many intervals and this long is overdue."""
PAUSE_FACTOR = 4
"""The pause after a full batch, as a multiple of the batch's duration: a long purge must not saturate the disk."""


@dataclass(frozen=True, slots=True)
class Chore:
    """A periodic job. `run` processes at most `batch` rows and returns how many it processed.

    `after_commit` is for what must not happen if the transaction is rolled back.
    """

    name: str
    interval: timedelta
    run: Callable[[Tx, int], Awaitable[int]]
    after_commit: Callable[[], Awaitable[None]] | None = None


@dataclass(frozen=True, slots=True)
class ChoreName:
    name: str


@dataclass(frozen=True, slots=True)
class ChoreRun:
    """The last run of a chore, in any process."""

    name: str
    interval: timedelta
    started_ago: timedelta | None
    succeeded_ago: timedelta | None
    rows: int | None
    error: str | None

    @property
    def is_overdue(self) -> bool:
        """Whether it has not succeeded for long. A chore that never started is not overdue."""
        return self.succeeded_ago is not None and self.succeeded_ago > overdue_after(self.interval)


def overdue_after(interval: timedelta) -> timedelta:
    return OVERDUE_INTERVALS * interval + OVERDUE_AFTER


class ChoreRunner:
    """Runs due chores. Several processes may do so; each run belongs to one of them."""

    def __init__(self, db: Database, chores: Sequence[Chore], batch: int = CHORE_BATCH_SIZE) -> None:
        self._db = db
        self._chores = {chore.name: chore for chore in chores}
        self._batch = batch
        self._continuing: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Run due chores until cancelled. Continues when the database is unavailable."""
        has_deleted = False
        try:
            while True:
                try:
                    await self._db.require_fitting_schema()  # else its failing runs keep others from running them
                    if not has_deleted:
                        async with self._db.autocommit() as tx:
                            await tx.run(Q.delete_unknown, names=[*self._chores])
                        has_deleted = True
                    await self._run_due_once()
                except Unavailable as error:
                    log.warning("chores delayed", error=str(error))
                except Exception:  # if this task ended, maintenance would stop unnoticed
                    log.exception("chores failed")
                await asyncio.sleep(spread(CHECK_INTERVAL))
        finally:
            for task in self._continuing.values():
                task.cancel()

    async def run_due(self) -> list[str]:
        """Run all due chores to completion; returns the names of those this process ran."""
        names = await self._run_due_once()
        await asyncio.gather(*self._continuing.values())
        return names

    async def list_runs(self, tx: Tx) -> list[ChoreRun]:
        """The last run of every chore."""
        return await tx.all(ChoreRun, Q.list_runs, **self._intervals)

    @property
    def _intervals(self) -> dict[str, object]:
        return {"names": [*self._chores], "intervals": [chore.interval for chore in self._chores.values()]}

    async def _run_due_once(self) -> list[str]:
        async with self._db.autocommit() as tx:
            due = await tx.all(ChoreName, Q.list_due, **self._intervals)
        return [
            row.name
            for row in due
            if row.name not in self._continuing and await self._run_chore(self._chores[row.name])
        ]

    async def _run_chore(self, chore: Chore) -> bool:
        """Run one batch. If more rows remain, a task continues beside the other chores: a purge may take hours."""
        async with self._db.autocommit() as tx:
            if not await tx.value(Q.begin_run, name=chore.name, interval=chore.interval):
                return False
        started = monotonic()
        batch = await self._run_batch(chore)
        if batch is None:
            return False
        if batch.rows < self._batch:
            await self._finish(chore, batch)
            return True
        task = asyncio.create_task(
            self._continue_chore(chore, batch.rows, monotonic() - started), name=f"chore {chore.name}"
        )
        self._continuing[chore.name] = task
        task.add_done_callback(lambda _: self._continuing.pop(chore.name))
        return True

    async def _continue_chore(self, chore: Chore, rows: int, seconds: float) -> None:
        while True:
            await self._record(chore, Q.record_success)
            await asyncio.sleep(PAUSE_FACTOR * seconds)
            started = monotonic()
            batch = await self._run_batch(chore)
            if batch is None:
                return
            rows, seconds = rows + batch.rows, monotonic() - started
            if batch.rows < self._batch:
                await self._finish(chore, ChoreBatch(rows, batch.error))
                return

    async def _run_batch(self, chore: Chore) -> "ChoreBatch | None":
        """Run one batch; None if another process is running the chore. A failure does not stop other chores."""
        try:
            async with self._db.transaction() as tx:
                if not await tx.value(Q.lock_run, name=chore.name):
                    return None
                rows = await chore.run(tx, self._batch)
            if chore.after_commit:
                await chore.after_commit()
        except PabalError as failure:
            log.error("chore failed", chore=chore.name, error=str(failure))
            return ChoreBatch(0, clean_error_text(str(failure)))
        except Exception as failure:
            log.exception("chore failed", chore=chore.name)
            return ChoreBatch(0, clean_error_text(f"{type(failure).__name__}: {failure}"))
        else:
            return ChoreBatch(rows)

    async def _finish(self, chore: Chore, batch: "ChoreBatch") -> None:
        if batch.rows:
            log.info("chore done", chore=chore.name, rows=batch.rows)
        await self._record(chore, Q.finish_run, rows=batch.rows, error=batch.error)

    async def _record(self, chore: Chore, query: Query, **values: object) -> None:
        try:
            async with self._db.autocommit() as tx:
                await tx.run(query, name=chore.name, **values)
        except PabalError as failure:  # the chore itself has run
            log.warning("chore run not recorded", chore=chore.name, error=str(failure))


@dataclass(frozen=True, slots=True)
class ChoreBatch:
    """The rows of one or more batches, and the error of the last one."""

    rows: int
    error: str | None = None


async def list_recorded_runs(tx: Tx) -> list[ChoreRun]:
    """The last run of every chore that any process has started."""
    return await tx.all(ChoreRun, Q.list_recorded_runs)
