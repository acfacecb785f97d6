"""Concurrent publishes of one client go in one request.

A publish is sent at once while fewer than `MAX_REQUESTS` requests run. Those that come meanwhile wait, and one of their
callers then sends them all: there is no task or thread of our own, and a publish returns when its event is durable. If
the sending caller is cancelled, another one sends the events again, with the same idempotency keys.
"""

import asyncio
import copy
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeVar
from uuid import UUID

import msgspec

from pabal_client.errors import ClientError, ValidationFailedError
from pabal_client.requests import (
    BatchPublishItem,
    PublishedEvent,
    fit_batch,
    publish_flow,
    send_batch_flow,
)
from pabal_client.transport import Flow, ServiceCredentials

ResultT = TypeVar("ResultT")
PublishOutcome = PublishedEvent | BatchPublishItem | ClientError

MAX_REQUESTS = 2
"""Requests at a time while the hub answers soon. Fewer requests carry more events each."""
MAX_SLOW_REQUESTS = 8
"""Requests at a time while the hub is slow."""
SLOW_REQUEST = 0.1
"""Seconds after which an event no longer waits for a running request, and is sent beside it."""
MAX_GATHERED = 500
"""Events per request: the callers of a larger one would wait longer than in two."""


class RunFlowAsync(Protocol):
    def __call__(self, flow: Flow[ResultT]) -> Coroutine[Any, Any, ResultT]: ...


class RunFlowSync(Protocol):
    def __call__(self, flow: Flow[ResultT]) -> ResultT: ...


class QueuedPublish:
    """An event and its caller, which `wake` tells that there is an outcome or that it is to send."""

    __slots__ = ("draft", "has_left", "is_sender", "outcome", "wake")

    def __init__(self, draft: msgspec.Raw, wake: Callable[[], None]) -> None:
        self.draft = draft
        self.wake = wake
        self.is_sender = False
        self.has_left = False
        self.outcome: PublishOutcome | None = None


class PublishQueue:
    """Decides which caller sends which events. Not thread-safe."""

    def __init__(self) -> None:
        self._waiting: deque[QueuedPublish] = deque()
        self._requests = 0

    @property
    def head(self) -> QueuedPublish | None:
        """The event that waits longest."""
        return self._waiting[0] if self._waiting else None

    def join(self, publish: QueuedPublish) -> None:
        """Add an event. Its caller sends it at once if it need not wait."""
        if self._requests < MAX_REQUESTS and not self._waiting:
            self._make_sender(publish)
        else:
            self._waiting.append(publish)

    def take_batch(self, sender: QueuedPublish) -> list[QueuedPublish]:
        """The events that the sender sends: its own, and as many of those waiting as fit into the request."""
        count = min(len(self._waiting), MAX_GATHERED - 1)
        if not count:
            return [sender]
        drafts = [sender.draft, *(self._waiting[index].draft for index in range(count))]
        return [sender, *(self._waiting.popleft() for _ in range(len(fit_batch(drafts)) - 1))]

    def finish(self, batch: Sequence[QueuedPublish], outcomes: Sequence[PublishOutcome] | None = None) -> None:
        """End a request: answer the callers, or let others send their events if the sender was interrupted."""
        self._requests -= 1
        if outcomes is None:
            self._waiting.extendleft(publish for publish in reversed(batch[1:]) if not publish.has_left)
        else:
            for publish, outcome in zip(batch, outcomes, strict=True):
                publish.outcome = outcome
                publish.wake()
        if self._waiting and self._requests < MAX_REQUESTS:
            self._wake_sender()

    def start_beside(self) -> None:
        """Send the waiting events beside the running requests, which take long."""
        if self._waiting and self._requests < MAX_SLOW_REQUESTS:
            self._wake_sender()

    def leave(self, publish: QueuedPublish) -> None:
        """Remove an event whose caller gave up while it waited. If it is being sent, it is not sent again."""
        publish.has_left = True
        if publish.is_sender:
            self.finish([publish])
        elif publish in self._waiting:
            self._waiting.remove(publish)

    def _wake_sender(self) -> None:
        sender = self._waiting.popleft()
        self._make_sender(sender)
        sender.wake()

    def _make_sender(self, publish: QueuedPublish) -> None:
        self._requests += 1
        publish.is_sender = True


class AsyncGatherer:
    """Publishes the events of the tasks of one event loop."""

    def __init__(self, run_flow: RunFlowAsync, credentials: ServiceCredentials) -> None:
        self._run_flow = run_flow
        self._credentials = credentials
        self._queue = PublishQueue()
        self._timer: asyncio.TimerHandle | None = None

    async def publish(self, draft: msgspec.Raw) -> PublishedEvent:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        publish = QueuedPublish(draft, lambda: None if future.done() else future.set_result(None))
        self._queue.join(publish)
        try:
            if publish.is_sender:
                await asyncio.sleep(0)  # other tasks that are about to publish join the request
            else:
                self._watch(loop)
                await future
        except BaseException:
            self._queue.leave(publish)
            raise
        if publish.is_sender:
            await self._send(publish)
        return published_event(publish.outcome) or await self._run_flow(publish_flow(self._credentials, draft))

    async def _send(self, sender: QueuedPublish) -> None:
        batch = self._queue.take_batch(sender)
        outcomes: Sequence[PublishOutcome] | None = None
        try:
            outcomes = await self._run_flow(gathered_flow(self._credentials, batch))
        finally:
            self._queue.finish(batch, outcomes)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look after the waiting events until there are none."""
        if self._timer is None:
            self._timer = loop.call_later(SLOW_REQUEST, self._check, loop, self._queue.head)

    def _check(self, loop: asyncio.AbstractEventLoop, head: QueuedPublish | None) -> None:
        self._timer = None
        if head is not None and self._queue.head is head:
            self._queue.start_beside()
        if self._queue.head is not None:
            self._watch(loop)


class Gatherer:
    """Publishes the events of several threads."""

    def __init__(self, run_flow: RunFlowSync, credentials: ServiceCredentials) -> None:
        self._run_flow = run_flow
        self._credentials = credentials
        self._queue = PublishQueue()
        self._lock = threading.Lock()

    def publish(self, draft: msgspec.Raw) -> PublishedEvent:
        woken = threading.Event()
        publish = QueuedPublish(draft, woken.set)
        try:
            with self._lock:
                self._queue.join(publish)
            while not publish.is_sender and publish.outcome is None:
                if not woken.wait(SLOW_REQUEST):
                    self._check(publish)
        except BaseException:  # an interrupt
            with self._lock:
                self._queue.leave(publish)
            raise
        if publish.is_sender:
            self._send(publish)
        return published_event(publish.outcome) or self._run_flow(publish_flow(self._credentials, draft))

    def _send(self, sender: QueuedPublish) -> None:
        with self._lock:
            batch = self._queue.take_batch(sender)
        outcomes: Sequence[PublishOutcome] | None = None
        try:
            outcomes = self._run_flow(gathered_flow(self._credentials, batch))
        finally:
            with self._lock:
                self._queue.finish(batch, outcomes)

    def _check(self, publish: QueuedPublish) -> None:
        with self._lock:
            if self._queue.head is publish:
                self._queue.start_beside()


def gathered_flow(credentials: ServiceCredentials, batch: Sequence[QueuedPublish]) -> Flow[Sequence[PublishOutcome]]:
    """Send events in one request, or in several if the hub rejects it. An error of a request is that of its events."""
    try:
        if len(batch) == 1:
            return [(yield from publish_flow(credentials, batch[0].draft))]
        return (yield from send_batch_flow(credentials, [publish.draft for publish in batch]))
    except ClientError as error:
        if len(batch) == 1 or not isinstance(error, ValidationFailedError):
            return [error] * len(batch)
    middle = len(batch) // 2
    first = yield from gathered_flow(credentials, batch[:middle])
    return [*first, *(yield from gathered_flow(credentials, batch[middle:]))]


def published_event(outcome: PublishOutcome | None) -> PublishedEvent | None:
    """The event; None if it is to be sent alone, because the hub refused it in a batch, which does not say all."""
    match outcome:
        case PublishedEvent():
            return outcome
        case ClientError():
            raise copy.copy(outcome)  # an exception belongs to one caller: raising it sets its traceback
        case BatchPublishItem(id=UUID() as event_id, event_status=str() as status, created_at=datetime() as created_at):
            return PublishedEvent(event_id, status, created_at)
        case _:
            return None
