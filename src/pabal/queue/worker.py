"""A worker: claims as many rows as it has free hands, works them all at once, settles them in batches.

Three loops that never wait for each other: one claims, one settles, one keeps the leases. Whatever is held stays held
until it is settled or lost, so `hands` bounds everything the worker has in memory.
"""

import asyncio
import random
import traceback
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from time import monotonic
from typing import Any, Generic
from uuid import UUID

from pabal.core.errors import PabalError, Unavailable
from pabal.core.log import get_logger
from pabal.db.doorbell import POLL_INTERVAL, Doorbell, Listener
from pabal.db.errors import RetryableError
from pabal.db.pool import Database
from pabal.queue.lane import ClaimedRow, ItemType, Lane, OutcomeType, Settlement
from pabal.queue.outcome import Retry

log = get_logger()


@dataclass(frozen=True, slots=True)
class Settled:
    """Returned by a handler that has settled the row itself."""


SETTLED = Settled()

ItemHandler = Callable[[ItemType], Awaitable[OutcomeType | Settled]]
ClaimFilter = dict[str, Any]
"""For whom a claim is, as the lane takes it. `most`, if it is said, is the room they have: no claim asks for more."""
ClaimSchedule = Callable[[], Awaitable[Sequence[ClaimFilter]]]

MAX_RETRY_PAUSE = 5.0


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """How much at once, for how long, how soon."""

    concurrency: int = 100
    hold: timedelta = timedelta(seconds=30)
    poll_interval: timedelta = POLL_INTERVAL
    shutdown_grace: timedelta = timedelta(seconds=10)
    """What running handlers get when the worker stops; the rest is given back."""
    handler_timeout: timedelta = timedelta(minutes=15)
    """What one handler may take: a hung one would otherwise be kept alive by our own heartbeat."""


@dataclass(slots=True)
class InFlight(Generic[ItemType]):
    """A row in our hands, and who works it."""

    item: ItemType
    task: "asyncio.Task[None]"
    started_at: float
    is_overdue: bool = False


async def claim_unfiltered() -> Sequence[ClaimFilter]:
    """The rota of a lane whose claims name nobody."""
    return ({},)


@dataclass(slots=True)
class Worker(Generic[ItemType, OutcomeType]):
    """Works one lane until it is told to stop."""

    name: str
    lane: Lane[ItemType, OutcomeType]
    db: Database
    doorbell: Doorbell
    handle: ItemHandler[ItemType, OutcomeType]
    schedule: ClaimSchedule = claim_unfiltered
    config: WorkerConfig = field(default_factory=WorkerConfig)
    _in_flight: dict[UUID, InFlight[ItemType]] = field(init=False, default_factory=dict)
    _unsettled: list[Settlement[OutcomeType | Retry]] = field(init=False, default_factory=list)
    _has_unsettled: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _slot_freed: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _stopping: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _listener: Listener | None = field(init=False, default=None)
    _is_capped: bool = field(init=False, default=False)
    _settle_rounds: int = field(init=False, default=0)

    async def run(self) -> None:
        """Work until `stop`, then finish or give back what is held."""
        try:
            async with asyncio.TaskGroup() as loops:  # a loop that breaks takes the worker with it, loudly
                others = [loops.create_task(self._settle_loop()), loops.create_task(self._heartbeat_loop())]
                await self._claim_loop()
                await self._drain()
                for loop in others:
                    loop.cancel()
        finally:
            for hold in self._in_flight.values():
                hold.task.cancel()

    def stop(self) -> None:
        self._stopping.set()
        self._slot_freed.set()
        if self._listener is not None:
            self._listener.wake()

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    # Claiming

    async def _claim_loop(self) -> None:
        pause = 0.1
        with self.doorbell.listen(self.lane.channel) as self._listener:
            while not self._stopping.is_set():
                try:
                    more = await self._claim_round()
                except RetryableError:
                    continue
                except Exception as error:  # noqa: BLE001 a row we cannot even read must not stop the worker
                    log.warning(
                        "claim failed", worker=self.name, lane=self.lane.name, error=f"{type(error).__name__}: {error}"
                    )
                    await self._pause(pause)
                    pause = min(pause * 2, MAX_RETRY_PAUSE)
                    continue
                pause = 0.1
                if not more and not self._stopping.is_set():
                    patience = self.config.poll_interval * random.uniform(0.8, 1.2)  # noqa: S311 spreads the looks of many workers
                    await self._listener.wait(patience)

    async def _claim_round(self) -> bool:
        """Give everybody on the rota their share of the free hands. True when there may be more."""
        if self.config.concurrency <= len(self._in_flight):
            self._slot_freed.clear()
            await self._slot_freed.wait()
        more = short = False
        settled = self._settle_rounds
        rota = await self.schedule()
        for place, whom in enumerate(rota):
            free = self.config.concurrency - len(self._in_flight)
            share = -(-free // (len(rota) - place))
            if share <= 0 or self._stopping.is_set():
                return True
            room = min(share, whom.get("most", share))
            found = await self._claim(room, whom) if room else 0
            more = more or found == share
            short = short or found == room < share
        self._is_capped = short  # somebody's room is full: they are looked at again when anything is settled
        return more or (short and self._settle_rounds != settled)

    async def _claim(self, room: int, whom: ClaimFilter) -> int:
        asked = {name: value for name, value in whom.items() if name != "most"}
        async with self.db.autocommit() as tx:
            found = await self.lane.claim(tx, room, self.config.hold, self.name, **asked)
        for item in found:
            self._abandon(item.id)  # claimed again while an earlier claim of ours, long lost, is still at work
            self._in_flight[item.id] = InFlight(item, asyncio.create_task(self._run_handler(item)), monotonic())
        return len(found)

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds * random.uniform(0.8, 1.2)):  # noqa: S311 as above
                await self._stopping.wait()

    # Working

    async def _run_handler(self, item: ItemType) -> None:
        try:
            outcome: Any = await self.handle(item)
            if isinstance(outcome, Settled):
                self._release_slots([item])
                return
            if not isinstance(outcome, self.lane.outcome_types):
                outcome = retry_from_exception(TypeError(f"a handler gives an outcome, not {type(outcome).__name__}"))
        except asyncio.CancelledError as error:
            hold = self._in_flight.get(item.id)
            me = asyncio.current_task()
            if hold is not None and hold.task is me and hold.is_overdue:
                outcome = Retry(f"took longer than {self.config.handler_timeout.total_seconds():g} s", code="timeout")
            elif me is None or me.cancelling():  # by us: the row is lost or given back
                raise
            else:  # by something the handler waited for: a failure as any other
                outcome = retry_from_exception(error)
        except Exception as error:  # noqa: BLE001
            outcome = retry_from_exception(error)
        self._unsettled.append(Settlement(item, outcome))
        self._has_unsettled.set()

    # Settling

    async def _settle_loop(self) -> None:
        pause = 0.05
        while True:
            await self._has_unsettled.wait()
            self._has_unsettled.clear()
            batch, self._unsettled = self._unsettled, []
            try:
                await self._settle(batch)
            except (Unavailable, RetryableError) as error:
                log.warning("settle delayed", worker=self.name, rows=len(batch), error=str(error))
                self._unsettled = batch + self._unsettled
                self._has_unsettled.set()
                await asyncio.sleep(pause)
                pause = min(pause * 2, MAX_RETRY_PAUSE)
            else:
                pause = 0.05

    async def _settle(self, batch: list[Settlement[OutcomeType | Retry]]) -> None:
        """Settle a batch; if the database refuses it, find the row it refuses and leave that one to its lease."""
        atomic = self.lane.settles_atomically(batch)
        try:
            async with self.db.autocommit() if atomic else self.db.transaction() as tx:
                settled = await self.lane.settle(tx, batch)
        except (RetryableError, Unavailable):
            raise
        except Exception as error:  # noqa: BLE001
            if len(batch) == 1:
                log.error("settle refused", worker=self.name, row=str(batch[0].item.id), error=str(error))
                self._release_slots([batch[0].item])
                return
            middle = len(batch) // 2
            await self._settle(batch[:middle])
            await self._settle(batch[middle:])
            return
        for verdict in batch:
            if verdict.item.id not in settled:
                log.warning("lease lost", worker=self.name, lane=self.lane.name, row=str(verdict.item.id))
        self._release_slots([verdict.item for verdict in batch])

    def _release_slots(self, items: Sequence[ClaimedRow]) -> None:
        for item in items:
            if self._is_current(item):
                del self._in_flight[item.id]
        self._slot_freed.set()
        self._settle_rounds += 1
        if self._is_capped and self._listener is not None:
            self._listener.wake()

    def _is_current(self, item: ClaimedRow) -> bool:
        hold = self._in_flight.get(item.id)
        return hold is not None and hold.item.lease == item.lease

    # Keeping leases

    async def _heartbeat_loop(self) -> None:
        while True:
            await asyncio.sleep(min(self.config.hold / 3, self.config.handler_timeout).total_seconds())
            self._cancel_overdue()
            held = [hold.item for hold in self._in_flight.values()]
            if not held:
                continue
            try:
                async with self.db.autocommit() as tx:
                    lost = await self.lane.extend(tx, held, self.config.hold)
            except PabalError as error:
                log.warning("heartbeat missed", worker=self.name, rows=len(held), error=str(error))
                continue
            for item in held:
                if item.id in lost and self._is_current(item):
                    self._abandon(item.id)

    def _cancel_overdue(self) -> None:
        """Cancel handlers that take too long; each then settles its row as a failed attempt."""
        before = monotonic() - self.config.handler_timeout.total_seconds()
        for hold in self._in_flight.values():
            if hold.started_at < before and not hold.is_overdue and not hold.task.done():
                log.warning("handler overdue", worker=self.name, lane=self.lane.name, row=str(hold.item.id))
                hold.is_overdue = True
                hold.task.cancel()

    def _abandon(self, row: UUID) -> None:
        """A row that is no longer ours: its handler is told by being cancelled, and nothing is settled."""
        hold = self._in_flight.pop(row, None)
        if hold is not None:
            log.warning("lease lost", worker=self.name, lane=self.lane.name, row=str(row))
            hold.task.cancel()
            self._slot_freed.set()

    # Stopping

    async def _drain(self) -> None:
        running = [hold.task for hold in self._in_flight.values()]
        if running:
            await asyncio.wait(running, timeout=self.config.shutdown_grace.total_seconds())
        unfinished = [hold for hold in self._in_flight.values() if not hold.task.done()]
        for hold in unfinished:
            hold.task.cancel()
            del self._in_flight[hold.item.id]
        try:
            if unfinished:
                async with self.db.transaction() as tx:
                    await self.lane.release(tx, [hold.item for hold in unfinished])
            async with asyncio.timeout(self.config.shutdown_grace.total_seconds()):
                while self._in_flight:  # what is done is on its way into the table: the settling loop is still at it
                    self._slot_freed.clear()
                    await self._slot_freed.wait()
        except (PabalError, TimeoutError) as error:
            log.warning("left to their leases", worker=self.name, rows=len(self._in_flight), error=str(error))


def retry_from_exception(error: BaseException) -> Retry:
    return Retry(
        f"{type(error).__name__}: {error}",
        code=type(error).__name__,
        stack="".join(traceback.format_exception(error)),
    )
