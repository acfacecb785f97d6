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
from pabal.db.queries import beside
from pabal.db.tx import Tx

Q = beside(__file__)
log = get_logger()

BATCH = 5000
LOOK = 1.0
LATE = timedelta(minutes=1)
"""How long after its time a chore is overdue."""
REST = 4
"""How many times as long as a full batch took the next is put off: a purge of millions leaves the disk to others."""


@dataclass(frozen=True, slots=True)
class Chore:
    """Something to do every so often. `do` takes care of at most `batch` rows and says how many it did."""

    name: str
    every: timedelta
    do: Callable[[Tx, int], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class Name:
    name: str


@dataclass(frozen=True, slots=True)
class Run:
    """How a chore last ran, wherever it did. `since` is how long ago it began, `error` why it failed, if it did."""

    name: str
    every: timedelta
    since: timedelta | None
    rows: int | None
    error: str | None

    @property
    def overdue(self) -> bool:
        """Whether nobody has begun it again although its time is long over; one that never ran is not late yet."""
        return self.since is not None and self.since > self.every + LATE


class Chores:
    """Runs what is due, wherever it is due first."""

    def __init__(self, db: Database, chores: Sequence[Chore], batch: int = BATCH) -> None:
        self._db = db
        self._chores = {chore.name: chore for chore in chores}
        self._batch = batch
        self._long: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Look for due chores until cancelled. A database that is away is waited for."""
        try:
            while True:
                try:
                    await self._look()
                except Unavailable as error:
                    log.warning("chores wait", why=str(error))
                except Exception:  # nobody else would notice that the house is no longer kept
                    log.exception("chores failed")
                await asyncio.sleep(LOOK * random.uniform(0.8, 1.2))  # noqa: S311 spreads the looks of many processes
        finally:
            for task in self._long.values():
                task.cancel()

    async def run_due(self) -> list[str]:
        """Do everything that is due now, to its end; returns what this process did."""
        done = await self._look()
        await asyncio.gather(*self._long.values())
        return done

    async def standing(self, tx: Tx) -> list[Run]:
        """How each of them last ran, in their order."""
        return await tx.all(Run, Q.standing, **self._times)

    @property
    def _times(self) -> dict[str, object]:
        return {"names": [*self._chores], "everies": [chore.every for chore in self._chores.values()]}

    async def _look(self) -> list[str]:
        async with self._db.autocommit() as tx:
            due = await tx.all(Name, Q.due, **self._times)
        return [row.name for row in due if row.name not in self._long and await self._do(self._chores[row.name])]

    async def _do(self, chore: Chore) -> bool:
        """Do a batch of it. What is left after that is done beside the other chores: millions of rows take hours."""
        async with self._db.autocommit() as tx:
            if not await tx.value(Q.begin, name=chore.name, every=chore.every):
                return False
        began = monotonic()
        rows, error = await self._some(chore)
        if rows < self._batch:
            await self._finish(chore, rows, error)
            return True
        task = asyncio.create_task(self._go_on(chore, rows, monotonic() - began), name=f"chore {chore.name}")
        self._long[chore.name] = task
        task.add_done_callback(lambda _: self._long.pop(chore.name))
        return True

    async def _go_on(self, chore: Chore, rows: int, took: float) -> None:
        done, error = self._batch, None
        while done >= self._batch:
            await asyncio.sleep(REST * took)
            began = monotonic()
            done, error = await self._some(chore)
            rows, took = rows + done, monotonic() - began
        await self._finish(chore, rows, error)

    async def _some(self, chore: Chore) -> tuple[int, str | None]:
        """Take care of a batch: how many rows, and why it failed. That is seen, and stops no other chore."""
        try:
            async with self._db.transaction() as tx:
                return await chore.do(tx, self._batch) if await tx.value(Q.lock, name=chore.name) else 0, None
        except PabalError as failure:
            log.error("chore failed", chore=chore.name, why=str(failure))
            return 0, str(failure)
        except Exception as failure:
            log.exception("chore failed", chore=chore.name)
            return 0, f"{type(failure).__name__}: {failure}"

    async def _finish(self, chore: Chore, rows: int, error: str | None) -> None:
        if rows:
            log.info("chore done", chore=chore.name, rows=rows)
        try:
            async with self._db.autocommit() as tx:
                await tx.run(Q.finish, name=chore.name, rows=rows, error=error)
        except PabalError as failure:  # it is done all the same
            log.warning("chore unwritten", chore=chore.name, why=str(failure))
