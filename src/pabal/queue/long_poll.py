"""The desk: where the callers of one process wait for rows, long polls and streams alike.

One statement claims for all of them: two thousand waiting accounts are one look at the table, not two thousand, and a
ring that names its topic is a look for those who wait for it. Waiting holds no connection. What was claimed for
somebody who has gone meanwhile is given back at once.

Somebody who waits once is a caller; somebody who stays, as a stream does, has a seat.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Generic, TypeVar

from pabal.core.errors import PabalError
from pabal.core.log import get_logger
from pabal.db.channels import Channel
from pabal.db.doorbell import POLL_INTERVAL, Doorbell
from pabal.db.pool import Database
from pabal.db.tx import Tx

log = get_logger()

PollKey = TypeVar("PollKey", bound=Hashable)
PolledItem = TypeVar("PolledItem")

ClaimForKeys = Callable[[Tx, Mapping[PollKey, int]], Awaitable[Mapping[PollKey, Sequence[PolledItem]]]]
"""Claims for several keys in one statement, for each at most as many as it has places."""
ALL_TOPICS = frozenset({""})
ReleaseItems = Callable[[Tx, Sequence[PolledItem]], Awaitable[object]]


@dataclass(slots=True, eq=False)
class PollWaiter(Generic[PolledItem]):
    """Somebody who waits once, and for how many."""

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
    """Somebody who stays. `free` is how many more it takes, and goes down with what it is given."""

    free_slots: int
    on_rows: Callable[[list[PolledItem]], None]

    def deliver(self, rows: list[PolledItem]) -> None:
        self.free_slots -= len(rows)
        self.on_rows(rows)


def no_topic(_key: object) -> str:
    """The topic of a desk whose rings name none."""
    return ""


class LongPoll(Generic[PollKey, PolledItem]):
    """Serves the callers of one lane in one process."""

    def __init__(
        self,
        db: Database,
        doorbell: Doorbell,
        channel: Channel,
        claim: "ClaimForKeys[PollKey, PolledItem]",
        release: "ReleaseItems[PolledItem]",
        *,
        topic: Callable[[PollKey], str] | None = None,
        poll_interval: timedelta = POLL_INTERVAL,
    ) -> None:
        self._db = db
        self._listener = doorbell.listen(channel)
        self._claim_items = claim
        self._release_items = release
        self._topic: Callable[[PollKey], str] = topic or no_topic
        self._poll_interval = poll_interval
        self._waiters: dict[PollKey, list[PollWaiter[PolledItem] | StreamWaiter[PolledItem]]] = {}
        self._topics: dict[str, dict[PollKey, None]] = {}
        self._serve_task: asyncio.Task[None] | None = None
        self._release_tasks: set[asyncio.Task[None]] = set()

    async def poll(self, key: PollKey, limit: int, timeout: timedelta) -> list[PolledItem]:
        """Up to `places` rows of `key`: those due now, else the first that come, else none after `wait`."""
        caller: PollWaiter[PolledItem] = PollWaiter(limit)
        if timeout > timedelta():
            self._add_waiter(key, caller)  # before looking, so that nothing that comes between is missed
        try:
            found = await self._claim_once(key, limit)
            if found or timeout <= timedelta():
                return found
            try:
                async with asyncio.timeout(timeout.total_seconds()):
                    await caller.future
            except TimeoutError:
                if not caller.future.done() or caller.future.cancelled():
                    return []
            caller.is_consumed = True
            return caller.future.result()
        finally:
            self._finish_poll(key, caller)

    def subscribe(self, key: PollKey, waiter: StreamWaiter[PolledItem]) -> None:
        """Stay: what is due now comes soon, and then whatever comes."""
        self._add_waiter(key, waiter)
        self.wake(key)

    def wake(self, key: PollKey) -> None:
        """Look for this key soon: somebody has more places than before."""
        self._listener.wake(self._topic(key))

    def unsubscribe(self, key: PollKey, waiter: StreamWaiter[PolledItem], unused: Sequence[PolledItem]) -> None:
        """Leave a seat, and give back what was not used."""
        self._remove_waiter(key, waiter)
        self._release_later(unused)

    async def close(self) -> None:
        """Send every caller home with nothing, and finish what is being given back."""
        for callers in self._waiters.values():
            for caller in callers:
                if isinstance(caller, PollWaiter) and not caller.future.done():
                    caller.future.set_result([])
        await asyncio.gather(*self._release_tasks, return_exceptions=True)

    def _add_waiter(self, key: PollKey, caller: PollWaiter[PolledItem] | StreamWaiter[PolledItem]) -> None:
        self._waiters.setdefault(key, []).append(caller)
        self._topics.setdefault(self._topic(key), {})[key] = None
        if self._serve_task is None or self._serve_task.done():
            self._serve_task = asyncio.create_task(self._serve(), name="desk")

    def _remove_waiter(self, key: PollKey, caller: PollWaiter[PolledItem] | StreamWaiter[PolledItem]) -> None:
        callers = self._waiters.get(key, [])
        if caller in callers:
            callers.remove(caller)
            if not callers:
                del self._waiters[key]
                topic = self._topic(key)
                del self._topics[topic][key]
                if not self._topics[topic]:
                    del self._topics[topic]
        if not self._waiters:
            self._listener.wake()  # the clerk goes home when nobody waits

    def _finish_poll(self, key: PollKey, caller: PollWaiter[PolledItem]) -> None:
        self._remove_waiter(key, caller)
        if caller.future.done() and not caller.future.cancelled() and not caller.is_consumed:
            self._release_later(caller.future.result())

    async def _claim_once(self, key: PollKey, places: int) -> list[PolledItem]:
        looking = asyncio.create_task(self._claim({key: places}))
        try:
            found = await asyncio.shield(looking)
        except asyncio.CancelledError:  # gone, while the database was already claiming for it
            looking.add_done_callback(self._release_result)
            raise
        return [*found.get(key, ())]

    async def _serve(self) -> None:
        with self._listener:
            while self._waiters:
                rang = await self._listener.wait_for_topics(self._poll_interval * random.uniform(0.8, 1.2))  # noqa: S311 spreads many processes
                places = self._count_free_slots(self._listener.take_topics() if rang else ALL_TOPICS)
                if not places:
                    continue
                try:
                    found = await self._claim(places)
                except PabalError as error:
                    log.warning("desk waits", error=str(error))
                    continue
                except Exception:  # whoever waits here would wait for ever
                    log.exception("desk waits")
                    continue
                for key, rows in found.items():
                    try:
                        self._distribute(key, [*rows])
                    except Exception:  # one that cannot take what it is given keeps nothing from the others
                        log.exception("desk failed", rows=len(rows))

    def _count_free_slots(self, topics: AbstractSet[str]) -> dict[PollKey, int]:
        """How many each takes, of those it rang for."""
        keys = self._waiters if "" in topics else [key for topic in topics for key in self._topics.get(topic, ())]
        return {key: free for key in keys if (free := sum(each.free_slots for each in self._waiters[key]))}

    def _distribute(self, key: PollKey, rows: list[PolledItem]) -> None:
        for caller in self._waiters.get(key, ()):
            if rows and (free := caller.free_slots):
                caller.deliver(rows[:free])
                del rows[:free]
        self._release_later(rows)

    async def _claim(self, places: Mapping[PollKey, int]) -> Mapping[PollKey, Sequence[PolledItem]]:
        async with self._db.autocommit() as tx:
            return await self._claim_items(tx, places)

    def _release_result(self, looking: "asyncio.Task[Mapping[PollKey, Sequence[PolledItem]]]") -> None:
        if not looking.cancelled() and looking.exception() is None:
            for rows in looking.result().values():
                self._release_later(rows)

    def _release_later(self, rows: Sequence[PolledItem]) -> None:
        if rows:
            errand = asyncio.create_task(self._release(rows))
            self._release_tasks.add(errand)
            errand.add_done_callback(self._release_tasks.discard)

    async def _release(self, rows: Sequence[PolledItem]) -> None:
        try:
            async with self._db.transaction() as tx:
                await self._release_items(tx, rows)
        except PabalError as error:
            log.warning("left to their leases", rows=len(rows), error=str(error))
