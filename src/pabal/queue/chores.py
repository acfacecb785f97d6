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

    async def run(self) -> None:
        """Look for due chores until cancelled. A database that is away is waited for."""
        while True:
            try:
                await self.run_due()
            except Unavailable as error:
                log.warning("chores wait", why=str(error))
            except Exception:  # nobody else would notice that the house is no longer kept
                log.exception("chores failed")
            await asyncio.sleep(LOOK * random.uniform(0.8, 1.2))  # noqa: S311 spreads the looks of many processes

    async def run_due(self) -> list[str]:
        """Do everything that is due now; returns what this process did."""
        async with self._db.autocommit() as tx:
            due = await tx.all(Name, Q.due, **self._times)
        return [row.name for row in due if await self._do(self._chores[row.name])]

    async def standing(self, tx: Tx) -> list[Run]:
        """How each of them last ran, in their order."""
        return await tx.all(Run, Q.standing, **self._times)

    @property
    def _times(self) -> dict[str, object]:
        return {"names": [*self._chores], "everies": [chore.every for chore in self._chores.values()]}

    async def _do(self, chore: Chore) -> bool:
        async with self._db.autocommit() as tx:
            if not await tx.value(Q.begin, name=chore.name, every=chore.every):
                return False
        rows, error = 0, None
        try:
            while True:
                began = monotonic()
                async with self._db.transaction() as tx:
                    done = await chore.do(tx, self._batch) if await tx.value(Q.lock, name=chore.name) else 0
                rows += done
                if done < self._batch:
                    break
                await asyncio.sleep(REST * (monotonic() - began))
        except PabalError as failure:  # a chore that fails, or takes too long, is seen, and does not stop the others
            error = str(failure)
            log.error("chore failed", chore=chore.name, why=error)
        async with self._db.autocommit() as tx:
            await tx.run(Q.finish, name=chore.name, rows=rows, error=error)
        if rows:
            log.info("chore done", chore=chore.name, rows=rows)
        return True
