"""Publish in batches: events are collected and sent together, up to 1,000 at a time or after `flush_interval`.

`publish` returns a future: its result is the id of the event once it is durable. A full buffer makes `publish` wait;
closing the buffer sends the rest. Batches are sent one after the other, so events keep their order. While the hub is
unavailable, a batch is retried for `retry_timeout` seconds, with the same idempotency keys.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Generic, Self, TypeVar, Unpack
from uuid import UUID

import msgspec

from pabal_client.errors import HubUnavailableError, RateLimitError
from pabal_client.options import PublishOptions
from pabal_client.requests import MAX_BATCH, MAX_BODY_BYTES, BatchPublishItem, encode_event

log = logging.getLogger(__name__)

MAX_BUFFER_BYTES = 64 * 1024 * 1024
RETRY_PAUSE = 1.0
"""Seconds between retries, unless the hub asks for another delay."""

FutureT = TypeVar("FutureT", "asyncio.Future[UUID]", "Future[UUID]")


class PendingEvents(Generic[FutureT]):
    """The events waiting to be sent, the oldest first, and the batch that is being sent."""

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
        """Whether to send a batch before `flush_interval` has passed."""
        return len(self._waiting) >= min(MAX_BATCH, self._max_events) or self._bytes >= MAX_BODY_BYTES

    def add(self, draft: msgspec.Raw, future: FutureT) -> bool:
        """Add an event; return whether to wake the sender, which sleeps while a batch is not ready."""
        self._waiting.append((draft, future))
        self._bytes += len(bytes(draft))
        return len(self._waiting) == 1 or self.is_batch_ready

    def take_batch(self) -> list[msgspec.Raw]:
        """Remove and return the next batch."""
        self._sending = [self._waiting.popleft() for _ in range(min(MAX_BATCH, len(self._waiting)))]
        return [draft for draft, _ in self._sending]

    def resolve_batch(self, items: Sequence[BatchPublishItem]) -> None:
        """Set the result of each event of the batch."""
        refused = [item for item in items if item.id is None]
        if refused:
            log.error("events refused: %d of %d, the first: %s", len(refused), len(items), refused[0].error)
        for (_, future), item in zip(self._sending, items, strict=True):
            if future.done():  # cancelled by the caller
                continue
            if item.id is None:
                future.set_exception(item.error)
            else:
                future.set_result(item.id)
        self._clear_batch()

    def fail_batch(self, error: Exception) -> None:
        """Fail all events of the batch: they are not published, or it is unknown whether they are."""
        log.error("events not published: %d: %s", len(self._sending), error)
        for _, future in self._sending:
            if not future.done():
                future.set_exception(error)
        self._clear_batch()

    def fail_all(self) -> None:
        """Fail all events that are not sent, because the sender has stopped."""
        self._sending += self._waiting
        self._waiting.clear()
        if self._sending:
            self.fail_batch(HubUnavailableError("the buffer stopped before the event was sent"))

    def _clear_batch(self) -> None:
        self._bytes -= sum(len(bytes(draft)) for draft, _ in self._sending)
        self._sending = []


class Buffer:
    """The buffer of the sync client; a thread sends the batches. Threads may share it."""

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
        """Send the remaining events, and wait until they are sent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._sender.join()

    def publish(
        self, event_type: str, payload: Mapping[str, Any] | None = None, **options: Unpack[PublishOptions]
    ) -> "Future[UUID]":
        """Add an event to the buffer; waits while it is full. The future may be ignored."""
        draft = encode_event(event_type, payload, options)
        future: Future[UUID] = Future()
        future.set_running_or_notify_cancel()  # cannot be cancelled any more
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._pending.is_full)
            if self._closed:
                raise RuntimeError("the buffer is closed")
            if self._pending.add(draft, future):
                self._changed.notify_all()
        return future

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
        deadline = time.monotonic() + self._retry_timeout
        while True:
            try:
                items = self._send(batch)
            except Exception as error:  # noqa: BLE001 any exception goes to the futures
                pause = batch_retry_delay(error, deadline - time.monotonic())
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
    """The buffer of the async client; a task sends the batches."""

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
        """Send the remaining events, and wait until they are sent."""
        async with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._sender:
            await self._sender

    async def publish(
        self, event_type: str, payload: Mapping[str, Any] | None = None, **options: Unpack[PublishOptions]
    ) -> "asyncio.Future[UUID]":
        """Add an event to the buffer; waits while it is full. The future may be ignored."""
        draft = encode_event(event_type, payload, options)
        future: asyncio.Future[UUID] = asyncio.get_running_loop().create_future()
        async with self._changed:
            await self._changed.wait_for(lambda: self._closed or not self._pending.is_full)
            if self._closed:
                raise RuntimeError("the buffer is closed")
            if self._pending.add(draft, future):
                self._changed.notify_all()
        return future

    async def _send_loop(self) -> None:
        try:
            while batch := await self._next_batch():
                await self._publish_batch(batch)
        finally:
            self._closed = True
            self._pending.fail_all()
            async with self._changed:
                self._changed.notify_all()  # wake callers that wait in publish

    async def _next_batch(self) -> list[msgspec.Raw]:
        async with self._changed:
            await self._changed.wait_for(lambda: self._closed or self._pending.has_waiting)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._flush_interval):
                    await self._changed.wait_for(lambda: self._closed or self._pending.is_batch_ready)
            return self._pending.take_batch()

    async def _publish_batch(self, batch: list[msgspec.Raw]) -> None:
        deadline = time.monotonic() + self._retry_timeout
        while True:
            try:
                items = await self._send(batch)
            except Exception as error:  # noqa: BLE001
                pause = batch_retry_delay(error, deadline - time.monotonic())
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
    """How long to wait before a retry; None if a retry cannot help or does not fit into `time_left`."""
    if not isinstance(error, RateLimitError | HubUnavailableError):
        return None
    pause = error.retry_after or RETRY_PAUSE
    return pause if pause < time_left else None
