"""The gatherer: many callers, one statement, one commit."""

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import Generic, TypeVar

from pabal.core.errors import Unavailable
from pabal.db.faults import Contended
from pabal.db.pool import Database
from pabal.db.tx import Tx

Draft = TypeVar("Draft")
Result = TypeVar("Result")

Put = Callable[[Tx, Sequence[Draft]], Awaitable[Sequence[Result | Exception]]]
"""Writes a group in one statement; gives one result, or one refusal, for each draft."""

TRIES = 5
SLOW = 0.1
"""Seconds after which a group is in somebody's way, and the next does not wait for it."""
ASIDE = 0.2
"""Seconds to let somebody else go first who writes the same."""


class Gatherer(Generic[Draft, Result]):
    """Turns concurrent puts into groups. Each caller is answered after its own commit, and by its own failure only.

    Idle, a put is written at once; while a group is being written, the next one gathers.
    """

    def __init__(self, db: Database, put: "Put[Draft, Result]", *, most: int = 1000, abreast: int = 4) -> None:
        self._db = db
        self._put = put
        self._most = most
        self._abreast = abreast
        self._waiting: deque[tuple[Draft, asyncio.Future[Result]]] = deque()
        self._writers: set[asyncio.Task[None]] = set()
        self._aside: set[asyncio.Task[None]] = set()
        self._began = 0.0

    async def put(self, draft: Draft) -> Result:
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((draft, answer))
        if not self._writers or (len(self._writers) < self._abreast and self._is_slow()):
            self._writers.add(asyncio.create_task(self._write_all()))
        return await answer

    async def close(self) -> None:
        """Wait until everything gathered is written."""
        while self._writers or self._aside:
            await asyncio.gather(*self._writers, *self._aside, return_exceptions=True)

    def _is_slow(self) -> bool:
        """More wait than one group takes, or the group on its way waits for somebody."""
        return len(self._waiting) >= self._most or monotonic() - self._began > SLOW

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                group = [self._waiting.popleft() for _ in range(min(self._most, len(self._waiting)))]
                await self._write(group)
        finally:  # in the same step as the last look: a put in between would find a writer that looks no more
            self._writers -= {asyncio.current_task()}

    async def _write(self, group: list[tuple[Draft, asyncio.Future[Result]]], tries: int = TRIES) -> None:
        self._began = monotonic()
        try:
            async with self._db.autocommit() as tx:
                results = await self._put(tx, [draft for draft, _ in group])
            told = [*zip(group, results, strict=True)]
        except Contended as error:
            if tries > 1:
                await asyncio.sleep(random.uniform(0.5, 1) * ASIDE)  # noqa: S311 spreads several who step aside
                await self._write(group, tries - 1)
            else:
                self._fail(group, error)
        except Unavailable as error:
            self._fail(group, error)
        except Exception as error:  # noqa: BLE001 whatever it is, somebody must hear of it
            if len(group) == 1:
                self._fail(group, error)
                return
            middle = len(group) // 2  # one bad row fails alone: halve until it is found
            await self._write(group[:middle])
            await self._write(group[middle:])
        else:
            self._tell(told, tries)

    def _tell(self, told: "list[tuple[tuple[Draft, asyncio.Future[Result]], Result | Exception]]", tries: int) -> None:
        """Answer each for itself. Who has to wait for somebody else's row waits alone."""
        held: list[tuple[Draft, asyncio.Future[Result]]] = []
        for (draft, answer), result in told:
            if answer.done():
                continue  # the caller went away; what it brought is written all the same
            if isinstance(result, Contended) and tries > 1:
                held.append((draft, answer))
            elif isinstance(result, Exception):
                answer.set_exception(result)
            else:
                answer.set_result(result)
        if held:
            waiting = asyncio.create_task(self._write_later(held, tries - 1))
            self._aside.add(waiting)
            waiting.add_done_callback(self._aside.discard)

    async def _write_later(self, group: list[tuple[Draft, asyncio.Future[Result]]], tries: int) -> None:
        await asyncio.sleep(random.uniform(0.5, 1) * ASIDE)  # noqa: S311 spreads several who step aside
        await self._write(group, tries)

    def _fail(self, group: list[tuple[Draft, asyncio.Future[Result]]], error: Exception) -> None:
        for _, answer in group:
            if not answer.done():
                answer.set_exception(error)
