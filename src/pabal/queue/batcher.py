"""Batcher: the writes of many concurrent callers in one statement and one commit."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import Generic, NamedTuple, TypeVar

from pabal.core.backoff import spread
from pabal.core.errors import Unavailable
from pabal.db.errors import RetryableError
from pabal.db.pool import Database
from pabal.db.tx import Tx
from pabal.queue.bisect import bisect_failures

BatchItem = TypeVar("BatchItem")
BatchResult = TypeVar("BatchResult")

WriteBatch = Callable[[Tx, Sequence[BatchItem]], Awaitable[Sequence[BatchResult | Exception]]]
"""Writes a batch in one statement and returns one result or error per item."""

MAX_WRITE_ATTEMPTS = 5
SLOW_WRITE_SECONDS = 0.1
"""When a write takes longer, the next batch starts beside it."""
RETRY_DELAY = 0.2
"""Seconds to wait for another writer of the same rows."""


class QueuedWrite(NamedTuple, Generic[BatchItem, BatchResult]):
    """One caller's item, the future it waits on, and the monotonic time of the put."""

    item: BatchItem
    future: "asyncio.Future[BatchResult]"
    put_at: float

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Batcher(Generic[BatchItem, BatchResult]):
    """Collects concurrent puts into batches. A put returns after the commit, and fails only because of its own item.

    An idle batcher writes a put at once; puts that arrive during a write form the next batch.
    """

    def __init__(
        self,
        db: Database,
        write_batch: "WriteBatch[BatchItem, BatchResult]",
        *,
        max_batch_size: int = 1000,
        max_in_flight: int = 4,
        contention_timeout: float = 0.0,
    ) -> None:
        """`contention_timeout`: seconds for which an item that waits for another transaction is tried, at least."""
        self._db = db
        self._write_batch = write_batch
        self._max_batch_size = max_batch_size
        self._max_in_flight = max_in_flight
        self._contention_timeout = contention_timeout
        self._queue: deque[QueuedWrite[BatchItem, BatchResult]] = deque()
        self._writers: set[asyncio.Task[None]] = set()
        self._retries: set[asyncio.Task[None]] = set()
        self._write_started = 0.0

    async def put(self, item: BatchItem) -> BatchResult:
        return await self.enqueue(item)

    def enqueue(self, item: BatchItem) -> "asyncio.Future[BatchResult]":
        """Put an item, for callers that do not wait to the end. Cancelling the future does not prevent the write."""
        future: asyncio.Future[BatchResult] = asyncio.get_running_loop().create_future()
        self._queue.append(QueuedWrite(item, future, monotonic()))
        if not self._writers or (len(self._writers) < self._max_in_flight and self._is_slow()):
            self._writers.add(asyncio.create_task(self._write_queue()))
        return future

    async def close(self) -> None:
        """Wait until all queued items are written."""
        while self._writers or self._retries:
            await asyncio.gather(*self._writers, *self._retries, return_exceptions=True)

    def _is_slow(self) -> bool:
        """Whether more than one batch is queued, or the current write takes long."""
        return len(self._queue) >= self._max_batch_size or monotonic() - self._write_started > SLOW_WRITE_SECONDS

    async def _write_queue(self) -> None:
        try:
            while self._queue:
                batch = [self._queue.popleft() for _ in range(min(self._max_batch_size, len(self._queue)))]
                await self._write(batch, MAX_WRITE_ATTEMPTS)
        finally:  # no await between the last check of the queue and this: a put must not see a writer that has ended
            self._writers -= {asyncio.current_task()}

    async def _write(self, batch: Sequence[QueuedWrite[BatchItem, BatchResult]], attempts: int) -> None:
        async def write(half: Sequence[QueuedWrite[BatchItem, BatchResult]]) -> Sequence[None]:
            await self._write_with_retries(half, attempts)
            return ()

        await bisect_failures(batch, write, QueuedWrite[BatchItem, BatchResult].fail, on=(Exception,))

    async def _write_with_retries(self, batch: Sequence[QueuedWrite[BatchItem, BatchResult]], attempts: int) -> None:
        """Write a batch. Errors that an item may have caused are raised; a RetryableError is tried again."""
        self._write_started = monotonic()
        try:
            async with self._db.autocommit() as tx:
                results = await self._write_batch(tx, [queued.item for queued in batch])
            outcomes = [*zip(batch, results, strict=True)]
        except RetryableError as error:
            if attempts > 1:
                await asyncio.sleep(spread(RETRY_DELAY, 0.5, 1))
                await self._write_with_retries(batch, attempts - 1)
            else:
                self._fail(batch, error)
        except Unavailable as error:
            self._fail(batch, error)
        else:
            self._resolve(outcomes, attempts)

    def _resolve(
        self, outcomes: "Sequence[tuple[QueuedWrite[BatchItem, BatchResult], BatchResult | Exception]]", attempts: int
    ) -> None:
        """Answer each caller. Items that wait for another transaction are tried again apart from the others."""
        contended: list[QueuedWrite[BatchItem, BatchResult]] = []
        for queued, result in outcomes:
            if queued.future.done():
                continue  # the caller was cancelled; its item is written all the same
            if isinstance(result, RetryableError) and (attempts > 1 or self._is_within_timeout(queued)):
                contended.append(queued)
            elif isinstance(result, Exception):
                queued.fail(result)
            else:
                queued.future.set_result(result)
        if contended:
            retry = asyncio.create_task(self._retry_later(contended, max(attempts - 1, 1)))
            self._retries.add(retry)
            retry.add_done_callback(self._retries.discard)

    def _is_within_timeout(self, queued: "QueuedWrite[BatchItem, BatchResult]") -> bool:
        return monotonic() - queued.put_at < self._contention_timeout

    async def _retry_later(self, batch: Sequence[QueuedWrite[BatchItem, BatchResult]], attempts: int) -> None:
        await asyncio.sleep(spread(RETRY_DELAY, 0.5, 1))
        await self._write(batch, attempts)

    def _fail(self, batch: Sequence[QueuedWrite[BatchItem, BatchResult]], error: Exception) -> None:
        for queued in batch:
            queued.fail(error)
