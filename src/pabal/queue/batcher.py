"""The gatherer: many callers, one statement, one commit."""

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import Generic, TypeVar

from pabal.core.errors import Unavailable
from pabal.db.errors import RetryableError
from pabal.db.pool import Database
from pabal.db.tx import Tx

BatchItem = TypeVar("BatchItem")
BatchResult = TypeVar("BatchResult")

WriteBatch = Callable[[Tx, Sequence[BatchItem]], Awaitable[Sequence[BatchResult | Exception]]]
"""Writes a group in one statement; gives one result, or one refusal, for each draft."""

MAX_WRITE_ATTEMPTS = 5
SLOW_WRITE_SECONDS = 0.1
"""Seconds after which a group is in somebody's way, and the next does not wait for it."""
RETRY_DELAY = 0.2
"""Seconds to let somebody else go first who writes the same."""


class Batcher(Generic[BatchItem, BatchResult]):
    """Turns concurrent puts into groups. Each caller is answered after its own commit, and by its own failure only.

    Idle, a put is written at once; while a group is being written, the next one gathers.
    """

    def __init__(
        self,
        db: Database,
        write_batch: "WriteBatch[BatchItem, BatchResult]",
        *,
        max_batch_size: int = 1000,
        max_in_flight: int = 4,
    ) -> None:
        self._db = db
        self._write_batch = write_batch
        self._max_batch_size = max_batch_size
        self._max_in_flight = max_in_flight
        self._queue: deque[tuple[BatchItem, asyncio.Future[BatchResult]]] = deque()
        self._writers: set[asyncio.Task[None]] = set()
        self._retries: set[asyncio.Task[None]] = set()
        self._write_started = 0.0

    async def put(self, item: BatchItem) -> BatchResult:
        answer: asyncio.Future[BatchResult] = asyncio.get_running_loop().create_future()
        self._queue.append((item, answer))
        if not self._writers or (len(self._writers) < self._max_in_flight and self._is_slow()):
            self._writers.add(asyncio.create_task(self._write_queue()))
        return await answer

    async def close(self) -> None:
        """Wait until everything gathered is written."""
        while self._writers or self._retries:
            await asyncio.gather(*self._writers, *self._retries, return_exceptions=True)

    def _is_slow(self) -> bool:
        """More wait than one group takes, or the group on its way waits for somebody."""
        return len(self._queue) >= self._max_batch_size or monotonic() - self._write_started > SLOW_WRITE_SECONDS

    async def _write_queue(self) -> None:
        try:
            while self._queue:
                group = [self._queue.popleft() for _ in range(min(self._max_batch_size, len(self._queue)))]
                await self._write(group)
        finally:  # in the same step as the last look: a put in between would find a writer that looks no more
            self._writers -= {asyncio.current_task()}

    async def _write(
        self, group: list[tuple[BatchItem, asyncio.Future[BatchResult]]], tries: int = MAX_WRITE_ATTEMPTS
    ) -> None:
        self._write_started = monotonic()
        try:
            async with self._db.autocommit() as tx:
                results = await self._write_batch(tx, [draft for draft, _ in group])
            told = [*zip(group, results, strict=True)]
        except RetryableError as error:
            if tries > 1:
                await asyncio.sleep(random.uniform(0.5, 1) * RETRY_DELAY)  # noqa: S311 spreads several who step aside
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
            self._resolve(told, tries)

    def _resolve(
        self, told: "list[tuple[tuple[BatchItem, asyncio.Future[BatchResult]], BatchResult | Exception]]", tries: int
    ) -> None:
        """Answer each for itself. Who has to wait for somebody else's row waits alone."""
        held: list[tuple[BatchItem, asyncio.Future[BatchResult]]] = []
        for (draft, answer), result in told:
            if answer.done():
                continue  # the caller went away; what it brought is written all the same
            if isinstance(result, RetryableError) and tries > 1:
                held.append((draft, answer))
            elif isinstance(result, Exception):
                answer.set_exception(result)
            else:
                answer.set_result(result)
        if held:
            waiting = asyncio.create_task(self._retry_later(held, tries - 1))
            self._retries.add(waiting)
            waiting.add_done_callback(self._retries.discard)

    async def _retry_later(self, group: list[tuple[BatchItem, asyncio.Future[BatchResult]]], tries: int) -> None:
        await asyncio.sleep(random.uniform(0.5, 1) * RETRY_DELAY)  # noqa: S311
        await self._write(group, tries)

    def _fail(self, group: list[tuple[BatchItem, asyncio.Future[BatchResult]]], error: Exception) -> None:
        for _, answer in group:
            if not answer.done():
                answer.set_exception(error)
