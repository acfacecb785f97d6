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

from pabal.client import calls
from pabal.client.calls import HEAVIEST, MOST, Item
from pabal.client.errors import TooMany, Unavailable

log = logging.getLogger(__name__)

MOST_BYTES = 64 * 1024 * 1024
PAUSE = 1.0
"""Seconds between two tries while the hub is away, unless it says how long."""

Answer = TypeVar("Answer", "asyncio.Future[UUID]", "Future[UUID]")


class Pile(Generic[Answer]):
    """Events that wait to be sent, the oldest first, and those being sent."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: deque[tuple[msgspec.Raw, Answer]] = deque()
        self._sending: list[tuple[msgspec.Raw, Answer]] = []
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._waiting) + len(self._sending)

    @property
    def waits(self) -> bool:
        return bool(self._waiting)

    @property
    def full(self) -> bool:
        return len(self) >= self._most or self._bytes >= MOST_BYTES

    @property
    def enough(self) -> bool:
        """Whether a batch is worth sending before its time."""
        return len(self._waiting) >= min(MOST, self._most) or self._bytes >= HEAVIEST

    def add(self, draft: msgspec.Raw, answer: Answer) -> bool:
        """Whether the sender should have a look: it sleeps while there is nothing, or not enough."""
        self._waiting.append((draft, answer))
        self._bytes += len(bytes(draft))
        return len(self._waiting) == 1 or self.enough

    def take(self) -> list[msgspec.Raw]:
        """The next batch."""
        self._sending = [self._waiting.popleft() for _ in range(min(MOST, len(self._waiting)))]
        return [draft for draft, _ in self._sending]

    def told(self, items: Sequence[Item]) -> None:
        """Pass on what became of each event of the batch."""
        refused = [item for item in items if item.id is None]
        if refused:
            log.error("events refused: %d of %d, the first: %s", len(refused), len(items), refused[0].refusal)
        for (_, answer), item in zip(self._sending, items, strict=True):
            if answer.done():  # whoever wanted to know has gone
                continue
            if item.id is None:
                answer.set_exception(item.refusal)
            else:
                answer.set_result(item.id)
        self._cleared()

    def failed(self, error: Exception) -> None:
        """Pass on that the whole batch is not published, or not known to be."""
        log.error("events unpublished: %d: %s", len(self._sending), error)
        for _, answer in self._sending:
            if not answer.done():
                answer.set_exception(error)
        self._cleared()

    def cut_short(self) -> None:
        """Nobody sends any more: whoever waits is told so."""
        self._sending += self._waiting
        self._waiting.clear()
        if self._sending:
            self.failed(Unavailable("the buffer was cut short"))

    def _cleared(self) -> None:
        self._bytes -= sum(len(bytes(draft)) for draft, _ in self._sending)
        self._sending = []


class Buffer:
    """Batches for a client that waits, sent by a thread. Threads may share it."""

    def __init__(
        self, send: Callable[[Sequence[msgspec.Raw]], list[Item]], most: int, every: float, patience: float
    ) -> None:
        self._send = send
        self._every = every
        self._patience = patience
        self._pile: Pile[Future[UUID]] = Pile(most)
        self._news = threading.Condition()
        self._closed = False
        self._sender = threading.Thread(target=self._sends, name="pabal buffer", daemon=True)

    def __enter__(self) -> Self:
        self._sender.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Send what is left, and wait until it is."""
        with self._news:
            self._closed = True
            self._news.notify_all()
        self._sender.join()

    def publish(self, event_type: str, payload: Mapping[str, Any] | None = None, **more: Any) -> "Future[UUID]":
        """Put an event into the buffer, once there is room. The future may be asked, or left alone."""
        draft = calls.draft(event_type, payload, more)
        answer: Future[UUID] = Future()
        answer.set_running_or_notify_cancel()  # it is on its way: nobody can call it off here
        with self._news:
            self._news.wait_for(lambda: self._closed or not self._pile.full)
            if self._closed:
                raise RuntimeError("the buffer is closed")
            if self._pile.add(draft, answer):
                self._news.notify_all()
        return answer

    def _sends(self) -> None:
        try:
            while batch := self._next():
                self._publish(batch)
        finally:
            with self._news:
                self._closed = True
                self._pile.cut_short()
                self._news.notify_all()

    def _next(self) -> list[msgspec.Raw]:
        with self._news:
            self._news.wait_for(lambda: self._closed or self._pile.waits)
            self._news.wait_for(lambda: self._closed or self._pile.enough, self._every)
            return self._pile.take()

    def _publish(self, batch: list[msgspec.Raw]) -> None:
        until = time.monotonic() + self._patience
        while True:
            try:
                items = self._send(batch)
            except Exception as error:  # noqa: BLE001 whatever it is, whoever published hears of it
                pause = pause_before(error, until - time.monotonic())
                if pause is not None:
                    time.sleep(pause)
                    continue
                with self._news:
                    self._pile.failed(error)
                    self._news.notify_all()
            else:
                with self._news:
                    self._pile.told(items)
                    self._news.notify_all()
            return


class AsyncBuffer:
    """Batches for a client that awaits, sent by a task."""

    def __init__(
        self, send: Callable[[Sequence[msgspec.Raw]], Awaitable[list[Item]]], most: int, every: float, patience: float
    ) -> None:
        self._send = send
        self._every = every
        self._patience = patience
        self._pile: Pile[asyncio.Future[UUID]] = Pile(most)
        self._news = asyncio.Condition()
        self._closed = False
        self._sender: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._sender = asyncio.create_task(self._sends(), name="pabal buffer")
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Send what is left, and wait until it is."""
        async with self._news:
            self._closed = True
            self._news.notify_all()
        if self._sender:
            await self._sender

    async def publish(
        self, event_type: str, payload: Mapping[str, Any] | None = None, **more: Any
    ) -> "asyncio.Future[UUID]":
        """Put an event into the buffer, once there is room. The future may be awaited, or left alone."""
        draft = calls.draft(event_type, payload, more)
        answer: asyncio.Future[UUID] = asyncio.get_running_loop().create_future()
        async with self._news:
            await self._news.wait_for(lambda: self._closed or not self._pile.full)
            if self._closed:
                raise RuntimeError("the buffer is closed")
            if self._pile.add(draft, answer):
                self._news.notify_all()
        return answer

    async def _sends(self) -> None:
        try:
            while batch := await self._next():
                await self._publish(batch)
        finally:
            self._closed = True
            self._pile.cut_short()
            async with self._news:
                self._news.notify_all()  # whoever waits for room hears that there will be none

    async def _next(self) -> list[msgspec.Raw]:
        async with self._news:
            await self._news.wait_for(lambda: self._closed or self._pile.waits)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._every):
                    await self._news.wait_for(lambda: self._closed or self._pile.enough)
            return self._pile.take()

    async def _publish(self, batch: list[msgspec.Raw]) -> None:
        until = time.monotonic() + self._patience
        while True:
            try:
                items = await self._send(batch)
            except Exception as error:  # noqa: BLE001 as above
                pause = pause_before(error, until - time.monotonic())
                if pause is not None:
                    await asyncio.sleep(pause)
                    continue
                self._pile.failed(error)
            else:
                self._pile.told(items)
            async with self._news:
                self._news.notify_all()
            return


def pause_before(error: Exception, left: float) -> float | None:
    """How long to wait before trying again; None if it would not help, or not in the time that is left."""
    if not isinstance(error, TooMany | Unavailable):
        return None
    pause = error.retry_after or PAUSE
    return pause if pause < left else None
