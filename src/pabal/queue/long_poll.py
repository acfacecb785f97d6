"""Long polls and streams of one process wait here for rows.

One statement claims for all waiters: two thousand waiting accounts cost one query, and a wakeup with a topic claims
only for the waiters of that topic. Waiting holds no connection. Rows that were claimed for a waiter that has gone are
released at once.

A `PollWaiter` waits for one batch of rows; a `StreamWaiter` stays until it unsubscribes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Generic, TypeVar

from pabal.core.backoff import spread
from pabal.core.errors import PabalError
from pabal.core.log import get_logger
from pabal.db.doorbell.channels import POLLED, Channel
from pabal.db.doorbell.doorbell import POLL_INTERVAL, Doorbell
from pabal.db.pool import Database
from pabal.db.tx import Tx

log = get_logger()

PollKey = TypeVar("PollKey", bound=Hashable)
PolledItem = TypeVar("PolledItem")

ClaimForKeys = Callable[[Tx, Mapping[PollKey, int]], Awaitable[Mapping[PollKey, Sequence[PolledItem]]]]
"""Claims for several keys in one statement, up to the given number of rows per key."""
ALL_TOPICS = frozenset({"", POLLED})
"""Each of them stands for all keys."""
ReleaseItems = Callable[[Tx, Sequence[PolledItem]], Awaitable[object]]


@dataclass(slots=True, eq=False)
class PollWaiter(Generic[PolledItem]):
    """A long poll that waits for up to `limit` rows."""

    limit: int
    future: "asyncio.Future[list[PolledItem]]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    is_consumed: bool = False

    @property
    def free_slots(self) -> int:
        return 0 if self.future.done() else self.limit

    def deliver(self, rows: list[PolledItem]) -> None:
        self.future.set_result(rows)


@dataclass(slots=True, eq=False)
class StreamWaiter(Generic[PolledItem]):
    """A stream. `free_slots` is how many more rows it accepts; each delivered row takes one."""

    free_slots: int
    on_rows: Callable[[list[PolledItem]], None]
    was_skipped: bool = False
    """Whether rows may have become due while it had no free slot: wake its key when it has one again."""

    def deliver(self, rows: list[PolledItem]) -> None:
        self.free_slots -= len(rows)
        self.on_rows(rows)


def no_topic(_key: object) -> str:
    """The topic of every key, where wakeups carry no topic."""
    return ""


class LongPoll(Generic[PollKey, PolledItem]):
    """Claims for the waiters of one lane in one process."""

    def __init__(
        self,
        db: Database,
        doorbell: Doorbell,
        channel: Channel,
        claim: "ClaimForKeys[PollKey, PolledItem]",
        release: "ReleaseItems[PolledItem]",
        *,
        topic: Callable[[PollKey], str] | None = None,
        announce: Callable[[str], None] | None = None,
        poll_interval: timedelta = POLL_INTERVAL,
    ) -> None:
        """`announce` is called with the topic of every new waiter."""
        self._db = db
        self._note_rows = partial(doorbell.note_rows, channel)
        self._listener = doorbell.listen(channel)
        self._claim_items = claim
        self._release_items = release
        self._topic: Callable[[PollKey], str] = topic or no_topic
        self._announce = announce
        self._poll_interval = poll_interval
        self._waiters: dict[PollKey, list[PollWaiter[PolledItem] | StreamWaiter[PolledItem]]] = {}
        self._topics: dict[str, dict[PollKey, None]] = {}
        self._claiming: Collection[PollKey] = ()
        """The keys of the claim that is under way."""
        self._serve_task: asyncio.Task[None] | None = None
        self._is_closed = False
        self._release_tasks: set[asyncio.Task[None]] = set()
        self._watch_tasks: set[asyncio.Task[None]] = set()

    async def poll(self, key: PollKey, limit: int, timeout: timedelta) -> list[PolledItem]:
        """Claim up to `limit` rows of `key`: rows due now, else the next to become due, else none after `timeout`."""
        waiter: PollWaiter[PolledItem] = PollWaiter(limit)
        if timeout > timedelta():
            self._add_waiter(key, waiter)  # before the claim, so that no wakeup in between is missed
        try:
            rows = await self._claim_once(key, limit)
            if rows or timeout <= timedelta() or self._is_closed:
                return rows
            try:
                async with asyncio.timeout(timeout.total_seconds()):
                    await waiter.future
            except TimeoutError:
                if not waiter.future.done() or waiter.future.cancelled():
                    return []
            waiter.is_consumed = True
            return waiter.future.result()
        finally:
            self._finish_poll(key, waiter)

    def subscribe(self, key: PollKey, waiter: StreamWaiter[PolledItem]) -> None:
        """Deliver the rows that are due, and all later ones, to `waiter`. Subscribing again changes nothing."""
        if waiter not in self._waiters.get(key, ()):
            self._add_waiter(key, waiter)
        self.wake(key)

    def wake(self, key: PollKey) -> None:
        """Claim for this key soon, for example because a waiter has more free slots."""
        self._listener.wake(self._topic(key))

    def unsubscribe(self, key: PollKey, waiter: StreamWaiter[PolledItem], unused: Sequence[PolledItem]) -> None:
        """Remove a stream and release the rows it did not use."""
        self._remove_waiter(key, waiter)
        self._release_later(unused)

    def is_subscribed(self, key: PollKey, waiter: StreamWaiter[PolledItem]) -> bool:
        return waiter in self._waiters.get(key, ())

    def is_claiming(self, key: PollKey) -> bool:
        """Whether a claim for the streams of this key is under way."""
        return key in self._claiming

    def release(self, rows: Sequence[PolledItem]) -> None:
        """Release rows that have no waiter any more, soon."""
        self._release_later(rows)

    def release_unless(self, delivered: Awaitable[bool], rows: Sequence[PolledItem]) -> None:
        """Release rows as soon as it is clear that their response did not arrive."""
        task = asyncio.create_task(self._release_unless(delivered, rows))
        self._watch_tasks.add(task)
        task.add_done_callback(self._watch_tasks.discard)

    async def _release_unless(self, delivered: Awaitable[bool], rows: Sequence[PolledItem]) -> None:
        if not await delivered:
            await self._release(rows)

    async def close(self) -> None:
        """Answer every long poll with no rows, later ones without waiting, and wait for pending releases.

        Rows of responses that are not acknowledged yet come back when their leases end.
        """
        self._is_closed = True
        for task in self._watch_tasks:
            task.cancel()
        for waiters in self._waiters.values():
            for waiter in waiters:
                if isinstance(waiter, PollWaiter) and not waiter.future.done():
                    waiter.future.set_result([])
        await asyncio.gather(*self._release_tasks, *self._watch_tasks, return_exceptions=True)

    def _add_waiter(self, key: PollKey, waiter: PollWaiter[PolledItem] | StreamWaiter[PolledItem]) -> None:
        self._waiters.setdefault(key, []).append(waiter)
        topic = self._topic(key)
        self._topics.setdefault(topic, {})[key] = None
        if self._announce is not None:
            self._announce(topic)
        if self._serve_task is None or self._serve_task.done():
            self._serve_task = asyncio.create_task(self._serve(), name="long poll")

    def _remove_waiter(self, key: PollKey, waiter: PollWaiter[PolledItem] | StreamWaiter[PolledItem]) -> None:
        waiters = self._waiters.get(key, [])
        if waiter in waiters:
            waiters.remove(waiter)
            if not waiters:
                del self._waiters[key]
                topic = self._topic(key)
                del self._topics[topic][key]
                if not self._topics[topic]:
                    del self._topics[topic]
        if not self._waiters:
            self._listener.wake()  # lets the serve task end

    def _finish_poll(self, key: PollKey, waiter: PollWaiter[PolledItem]) -> None:
        self._remove_waiter(key, waiter)
        if waiter.future.done() and not waiter.future.cancelled() and not waiter.is_consumed:
            self._release_later(waiter.future.result())

    async def _claim_once(self, key: PollKey, limit: int) -> list[PolledItem]:
        claim = asyncio.create_task(self._claim({key: limit}))
        try:
            rows_by_key = await asyncio.shield(claim)
        except asyncio.CancelledError:  # the caller is gone, but the database may already have claimed
            claim.add_done_callback(self._release_result)
            raise
        return [*rows_by_key.get(key, ())]

    async def _serve(self) -> None:
        with self._listener:
            while self._waiters:
                woken = await self._listener.wait_for_topics(spread(self._poll_interval))
                free_slots = self._count_free_slots(self._listener.take_topics() if woken else ALL_TOPICS)
                if not free_slots:
                    continue
                self._claiming = free_slots
                try:
                    rows_by_key = await self._claim(free_slots)
                except PabalError as error:
                    log.warning("long poll failed", error=str(error))
                    continue
                except Exception:  # if this task ended, the waiters would wait for ever
                    log.exception("long poll failed")
                    continue
                finally:
                    self._claiming = ()  # the rows are delivered below, before any other task runs
                for key, rows in rows_by_key.items():
                    try:
                        self._distribute(key, [*rows])
                    except Exception:  # a waiter that fails must not keep rows from the others
                        log.exception("delivery to waiter failed", rows=len(rows))

    def _count_free_slots(self, topics: AbstractSet[str]) -> dict[PollKey, int]:
        """The free slots of each key with one of these topics."""
        keys = (
            self._waiters
            if not ALL_TOPICS.isdisjoint(topics)
            else [key for topic in topics for key in self._topics.get(topic, ())]
        )
        free_slots: dict[PollKey, int] = {}
        for key in keys:
            if free := sum(waiter.free_slots for waiter in self._waiters[key]):
                free_slots[key] = free
            else:
                self._mark_skipped(key)
        return free_slots

    def _mark_skipped(self, key: PollKey) -> None:
        for waiter in self._waiters[key]:
            if isinstance(waiter, StreamWaiter):
                waiter.was_skipped = True

    def _distribute(self, key: PollKey, rows: list[PolledItem]) -> None:
        for waiter in self._waiters.get(key, ()):
            if rows and (free := waiter.free_slots):
                waiter.deliver(rows[:free])
                del rows[:free]
        self._release_later(rows)

    async def _claim(self, free_slots: Mapping[PollKey, int]) -> Mapping[PollKey, Sequence[PolledItem]]:
        async with self._db.autocommit() as tx:
            rows_by_key = await self._claim_items(tx, free_slots)
        if any(rows_by_key.values()):
            self._note_rows()
        return rows_by_key

    def _release_result(self, claim: "asyncio.Task[Mapping[PollKey, Sequence[PolledItem]]]") -> None:
        if not claim.cancelled() and claim.exception() is None:
            for rows in claim.result().values():
                self._release_later(rows)

    def _release_later(self, rows: Sequence[PolledItem]) -> None:
        if rows:
            task = asyncio.create_task(self._release(rows))
            self._release_tasks.add(task)
            task.add_done_callback(self._release_tasks.discard)

    async def _release(self, rows: Sequence[PolledItem]) -> None:
        try:
            async with self._db.transaction() as tx:
                await self._release_items(tx, rows)
        except PabalError as error:
            log.warning("rows not released", rows=len(rows), error=str(error))
