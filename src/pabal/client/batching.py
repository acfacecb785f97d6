"""Publishing in batches: events are gathered and sent together, a thousand at a time or after a moment.

`publish` gives a future at once: it brings the event's id when the event is durable, or raises why it is not. A full
buffer makes its callers wait, and leaving it sends everything that is left. Batches go one after the other, so events
keep their order. While the hub is away they are tried again for `patience` seconds, with the same keys.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Generic, Self, TypeVar
from uuid import UUID

import msgspec

from pabal.client.errors import HubUnavailableError, RateLimitError
from pabal.client.requests import MAX_BATCH, MAX_BODY_BYTES, BatchPublishItem, encode_event

log = logging.getLogger(__name__)

MAX_BUFFER_BYTES = 64 * 1024 * 1024
RETRY_PAUSE = 1.0
"""Seconds between two tries while the hub is away, unless it says how long."""

FutureT = TypeVar("FutureT", "asyncio.Future[UUID]", "Future[UUID]")


class PendingEvents(Generic[FutureT]):
    """Events that wait to be sent, the oldest first, and those being sent."""

    def __init__(self, max_events: int) -> None:
        self._max_events = max_events
        self._waiting: deque[tuple[msgspec.Raw, FutureT]] = deque()
        self._sending: list[tuple[msgspec.Raw, FutureT]] = []
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._waiting) + len(self._sending)

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def is_full(self) -> bool:
        return len(self) >= self._max_events or self._bytes >= MAX_BUFFER_BYTES

    @property
    def is_batch_ready(self) -> bool:
        """Whether a batch is worth sending before its time."""
        return len(self._waiting) >= min(MAX_BATCH, self._max_events) or self._bytes >= MAX_BODY_BYTES

    def add(self, draft: msgspec.Raw, future: FutureT) -> bool:
        """Whether the sender should have a look: it sleeps while there is nothing, or not enough."""
        self._waiting.append((draft, future))
        self._bytes += len(bytes(draft))
        return len(self._waiting) == 1 or self.is_batch_ready

    def take_batch(self) -> list[msgspec.Raw]:
        """The next batch."""
        self._sending = [self._waiting.popleft() for _ in range(min(MAX_BATCH, len(self._waiting)))]
        return [draft for draft, _ in self._sending]

    def resolve_batch(self, items: Sequence[BatchPublishItem]) -> None:
        """Pass on what became of each event of the batch."""
        refused = [item for item in items if item.id is None]
        if refused:
            log.error("events refused: %d of %d, the first: %s", len(refused), len(items), refused[0].error)
        for (_, answer), item in zip(self._sending, items, strict=True):
            if answer.done():  # whoever wanted to know has gone
                continue
            if item.id is None:
                answer.set_exception(item.error)
            else:
                answer.set_result(item.id)
        self._clear_batch()

    def fail_batch(self, error: Exception) -> None:
        """Pass on that the whole batch is not published, or not known to be."""
        log.error("events unpublished: %d: %s", len(self._sending), error)
        for _, answer in self._sending:
            if not answer.done():
                answer.set_exception(error)
        self._clear_batch()

    def fail_all(self) -> None:
        """Nobody sends any more: whoever waits is told so."""
        self._sending += self._waiting
        self._waiting.clear()
        if self._sending:
            self.fail_batch(HubUnavailableError("the buffer was cut short"))

    def _clear_batch(self) -> None:
        self._bytes -= sum(len(bytes(draft)) for draft, _ in self._sending)
        self._sending = []


class Buffer:
    """Batches for a client that waits, sent by a thread. Threads may share it."""

    def __init__(
        self,
        send: Callable[[Sequence[msgspec.Raw]], list[BatchPublishItem]],
        max_events: int,
        flush_interval: float,
        retry_timeout: float,
    ) -> None:
        self._send = send
        self._flush_interval = flush_interval
        self._retry_timeout = retry_timeout
        self._pending: PendingEvents[Future[UUID]] = PendingEvents(max_events)
        self._changed = threading.Condition()
        self._closed = False
        self._sender = threading.Thread(target=self._send_loop, name="pabal buffer", daemon=True)

    def __enter__(self) -> Self:
        self._sender.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Send what is left, and wait until it is."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._sender.join()

    def publish(self, event_type: str, payload: Mapping[str, Any] | None = None, **options: Any) -> "Future[UUID]":
        """Put an event into the buffer, once there is room. The future may be asked, or left alone."""
        draft = encode_event(event_type, payload, options)
        answer: Future[UUID] = Future()
        answer.set_running_or_notify_cancel()  # it is on its way: nobody can call it off here
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._pending.is_full)
            if self._closed:
                raise RuntimeError("the buffer is closed")
            if self._pending.add(draft, answer):
                self._changed.notify_all()
        return answer

    def _send_loop(self) -> None:
        try:
            while batch := self._next_batch():
                self._publish_batch(batch)
        finally:
            with self._changed:
                self._closed = True
                self._pending.fail_all()
                self._changed.notify_all()

    def _next_batch(self) -> list[msgspec.Raw]:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._pending.has_waiting)
            self._changed.wait_for(lambda: self._closed or self._pending.is_batch_ready, self._flush_interval)
            return self._pending.take_batch()

    def _publish_batch(self, batch: list[msgspec.Raw]) -> None:
        until = time.monotonic() + self._retry_timeout
        while True:
            try:
                items = self._send(batch)
            except Exception as error:  # noqa: BLE001 whatever it is, whoever published hears of it
                pause = batch_retry_delay(error, until - time.monotonic())
                if pause is not None:
                    time.sleep(pause)
                    continue
                with self._changed:
                    self._pending.fail_batch(error)
                    self._changed.notify_all()
            else:
                with self._changed:
                    self._pending.resolve_batch(items)
                    self._changed.notify_all()
            return


class AsyncBuffer:
    """Batches for a client that awaits, sent by a task."""

    def __init__(
        self,
        send: Callable[[Sequence[msgspec.Raw]], Awaitable[list[BatchPublishItem]]],
        max_events: int,
        flush_interval: float,
        retry_timeout: float,
    ) -> None:
        self._send = send
        self._flush_interval = flush_interval
        self._retry_timeout = retry_timeout
        self._pending: PendingEvents[asyncio.Future[UUID]] = PendingEvents(max_events)
        self._changed = asyncio.Condition()
        self._closed = False
        self._sender: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._sender = asyncio.create_task(self._send_loop(), name="pabal buffer")
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Send what is left, and wait until it is."""
        async with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._sender:
            await self._sender

    async def publish(
        self, event_type: str, payload: Mapping[str, Any] | None = None, **options: Any
    ) -> "asyncio.Future[UUID]":
        """Put an event into the buffer, once there is room. The future may be awaited, or left alone."""
        draft = encode_event(event_type, payload, options)
        answer: asyncio.Future[UUID] = asyncio.get_running_loop().create_future()
        async with self._changed:
            await self._changed.wait_for(lambda: self._closed or not self._pending.is_full)
            if self._closed:
                raise RuntimeError("the buffer is closed")
            if self._pending.add(draft, answer):
                self._changed.notify_all()
        return answer

    async def _send_loop(self) -> None:
        try:
            while batch := await self._next_batch():
                await self._publish_batch(batch)
        finally:
            self._closed = True
            self._pending.fail_all()
            async with self._changed:
                self._changed.notify_all()  # whoever waits for room hears that there will be none

    async def _next_batch(self) -> list[msgspec.Raw]:
        async with self._changed:
            await self._changed.wait_for(lambda: self._closed or self._pending.has_waiting)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._flush_interval):
                    await self._changed.wait_for(lambda: self._closed or self._pending.is_batch_ready)
            return self._pending.take_batch()

    async def _publish_batch(self, batch: list[msgspec.Raw]) -> None:
        until = time.monotonic() + self._retry_timeout
        while True:
            try:
                items = await self._send(batch)
            except Exception as error:  # noqa: BLE001
                pause = batch_retry_delay(error, until - time.monotonic())
                if pause is not None:
                    await asyncio.sleep(pause)
                    continue
                self._pending.fail_batch(error)
            else:
                self._pending.resolve_batch(items)
            async with self._changed:
                self._changed.notify_all()
            return


def batch_retry_delay(error: Exception, time_left: float) -> float | None:
    """How long to wait before trying again; None if it would not help, or not in the time that is left."""
    if not isinstance(error, RateLimitError | HubUnavailableError):
        return None
    pause = error.retry_after or RETRY_PAUSE
    return pause if pause < time_left else None
