"""A worker: claims rows up to its concurrency, handles them concurrently and settles them in batches.

Three loops run independently: one claims, one settles, one extends the leases. A row is in flight until it is settled
or lost, so `concurrency` bounds the worker's memory.
"""

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from time import monotonic
from typing import Any, Generic
from uuid import UUID

from pabal.core.backoff import spread
from pabal.core.errors import PabalError, Unavailable
from pabal.core.log import get_logger
from pabal.db.doorbell.doorbell import POLL_INTERVAL, Doorbell, Listener
from pabal.db.errors import RetryableError
from pabal.db.pool import Database
from pabal.queue.bisect import bisect_failures
from pabal.queue.lane import ClaimedRow, ClaimedRows, ClaimRequest, FilterType, ItemType, Lane, OutcomeType, Settlement
from pabal.queue.outcome import Retry

log = get_logger()


@dataclass(frozen=True, slots=True)
class Settled:
    """Returned by a handler that has settled the row itself."""


SETTLED = Settled()


@dataclass(frozen=True, slots=True)
class ScheduledClaim(Generic[FilterType]):
    """A part of the claim of one round. `max_rows` limits it further than the worker's free slots."""

    claim_filter: FilterType
    max_rows: int | None = None
    on_claimed: Callable[[bool], None] | None = field(default=None, compare=False)
    """Called after the claim with whether more rows may be due."""


def wake_always(_topic: str) -> bool:
    return True


def has_no_more() -> bool:
    return False


ItemHandler = Callable[[ItemType], Awaitable[OutcomeType | Settled]]
ClaimSchedule = Callable[[], Awaitable[Sequence[ScheduledClaim[FilterType]]]]
"""Returns what to claim in one round."""

FIRST_CLAIM_PAUSE = 0.1
FIRST_SETTLE_PAUSE = 0.05
MAX_RETRY_PAUSE = 5.0


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Concurrency, lease and timeouts of a worker."""

    concurrency: int = 100
    hold: timedelta = timedelta(seconds=30)
    poll_interval: timedelta = POLL_INTERVAL
    shutdown_grace: timedelta = timedelta(seconds=10)
    """How long running handlers may continue when the worker stops. Unfinished rows are released."""
    handler_timeout: timedelta = timedelta(minutes=15)
    """How long one handler may run. Without a limit the heartbeat would hold the row of a hung handler for ever."""


@dataclass(slots=True)
class InFlight(Generic[ItemType]):
    """A claimed row and the task that handles it."""

    item: ItemType
    task: "asyncio.Task[None]"
    started_at: float
    is_overdue: bool = False


@dataclass(slots=True)
class Worker(Generic[ItemType, FilterType, OutcomeType]):
    """Handles the rows of one lane until it is stopped."""

    name: str
    lane: Lane[ItemType, FilterType, OutcomeType]
    db: Database
    doorbell: Doorbell
    handle: ItemHandler[ItemType, OutcomeType]
    schedule: ClaimSchedule[FilterType]
    config: WorkerConfig = field(default_factory=WorkerConfig)
    on_wakeup: Callable[[str], bool] = wake_always
    """Called with the topic of each wakeup; returns whether to claim now. The empty topic stands for all."""
    has_more: Callable[[], bool] = has_no_more
    """Whether the schedule has more to claim, so that the next round follows at once."""
    _in_flight: dict[UUID, InFlight[ItemType]] = field(init=False, default_factory=dict)
    _unsettled: list[Settlement[OutcomeType | Retry]] = field(init=False, default_factory=list)
    _has_unsettled: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _slot_freed: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _stopping: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _listener: Listener | None = field(init=False, default=None)
    _is_capped: bool = field(init=False, default=False)
    _settle_rounds: int = field(init=False, default=0)

    async def run(self) -> None:
        """Handle rows until `stop`, then finish or release the rows in flight."""
        try:
            async with asyncio.TaskGroup() as loops:  # an error in one loop ends the worker with that error
                background = [loops.create_task(self._settle_loop()), loops.create_task(self._heartbeat_loop())]
                await self._claim_loop()
                await self._drain()
                for loop in background:
                    loop.cancel()
        finally:
            for in_flight in self._in_flight.values():
                in_flight.task.cancel()

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
        pause, is_poll = FIRST_CLAIM_PAUSE, True
        with self.doorbell.listen(self.lane.channel, on_wakeup=self.on_wakeup) as self._listener:
            while not self._stopping.is_set():
                try:
                    more = await self._claim_round(is_poll=is_poll)
                except RetryableError:
                    continue
                except Exception as error:  # noqa: BLE001 a row that cannot be decoded must not stop the worker
                    reason = str(error) if isinstance(error, PabalError) else f"{type(error).__name__}: {error}"
                    log.warning("claim failed", worker=self.name, lane=self.lane.name, error=reason)
                    await self._pause(pause)
                    pause = min(pause * 2, MAX_RETRY_PAUSE)
                    continue
                pause, is_poll = FIRST_CLAIM_PAUSE, False
                if not more and not self.has_more() and not self._stopping.is_set():
                    is_poll = not await self._listener.wait(spread(self.config.poll_interval))

    async def _claim_round(self, *, is_poll: bool) -> bool:
        """Divide the free slots among the scheduled claims. Returns whether more rows may be due."""
        await self.db.require_fitting_schema()  # a row that was handled and cannot be settled would be handled again
        if self.config.concurrency <= len(self._in_flight):
            self._slot_freed.clear()
            await self._slot_freed.wait()
        settle_rounds = self._settle_rounds
        scheduled = await self.schedule()
        free = self.config.concurrency - len(self._in_flight)
        if free <= 0 or self._stopping.is_set():
            return True
        shares = share_slots([claim.max_rows for claim in scheduled], free)
        parts = [part for part in zip(scheduled, shares, strict=True) if part[1].limit]
        requests = [ClaimRequest(claim.claim_filter, share.limit) for claim, share in parts]
        claimed = await self._claim(requests, free, is_poll=is_poll)
        more = len(claimed.items) == free
        capped = any(not share.limit for share in shares)
        for (claim, share), has_more in zip(parts, claimed.has_more, strict=True):
            more = more or (has_more and not share.is_capped)
            capped = capped or (has_more and share.is_capped)
            if claim.on_claimed is not None:
                claim.on_claimed(has_more)
        self._is_capped = capped  # a claim reached its own cap: try it again when rows are settled
        return more or (capped and self._settle_rounds != settle_rounds)

    async def _claim(
        self, requests: Sequence[ClaimRequest[FilterType]], limit: int, *, is_poll: bool
    ) -> ClaimedRows[ItemType]:
        """Claim in one statement, if the lane can. A poll that finds nothing also looks for expired leases."""
        if not requests:
            return ClaimedRows([], ())
        async with self.db.autocommit() as tx:
            claimed = await self.lane.claim_many(tx, requests, limit, self.config.hold, self.name)
            if is_poll and not claimed.items and await self.lane.revive(tx, limit):
                claimed = await self.lane.claim_many(tx, requests, limit, self.config.hold, self.name)
        if claimed.items:
            self.doorbell.note_rows(self.lane.channel)
        create_task, now = asyncio.get_running_loop().create_task, monotonic()
        for item in claimed.items:
            if item.id in self._in_flight:
                self._abandon(item.id)  # this worker lost an earlier lease on the row, but its handler still runs
            self._in_flight[item.id] = InFlight(item, create_task(self._run_handler(item)), now)
        await asyncio.sleep(0)  # the handlers start, so that the next round counts them
        return claimed

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(spread(seconds)):
                await self._stopping.wait()

    # Handling

    async def _run_handler(self, item: ItemType) -> None:
        try:
            outcome: Any = await self.handle(item)
            if isinstance(outcome, Settled):
                self._release_slots([item])
                return
            if not isinstance(outcome, self.lane.outcome_types):
                outcome = retry_from_exception(
                    TypeError(f"the handler returned {type(outcome).__name__} instead of an outcome")
                )
        except asyncio.CancelledError as error:
            in_flight = self._in_flight.get(item.id)
            task = asyncio.current_task()
            if in_flight is not None and in_flight.task is task and in_flight.is_overdue:
                outcome = Retry(f"took longer than {self.config.handler_timeout.total_seconds():g} s", code="timeout")
            elif task is None or task.cancelling():  # cancelled by the worker: the row is lost or released
                raise
            else:  # raised by something the handler awaited: a failure like any other
                outcome = retry_from_exception(error)
        except Exception as error:  # noqa: BLE001
            outcome = retry_from_exception(error)
        self._unsettled.append(Settlement(item, outcome))
        self._has_unsettled.set()

    # Settling

    async def _settle_loop(self) -> None:
        pause = FIRST_SETTLE_PAUSE
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
                pause = FIRST_SETTLE_PAUSE

    async def _settle(self, batch: Sequence[Settlement[OutcomeType | Retry]]) -> None:
        """Settle a batch. A row that the database refuses is left until its lease expires."""
        await bisect_failures(
            batch, self._settle_batch, self._log_refused, on=(Exception,), unless=(RetryableError, Unavailable)
        )

    async def _settle_batch(self, batch: Sequence[Settlement[OutcomeType | Retry]]) -> Sequence[None]:
        async with self.db.autocommit() if self.lane.settles_atomically(batch) else self.db.transaction() as tx:
            settled = await self.lane.settle(tx, batch)
        if len(settled) < len(batch):
            for settlement in batch:
                if settlement.item.id not in settled:
                    log.warning("lease lost", worker=self.name, lane=self.lane.name, row=str(settlement.item.id))
        self._release_slots([settlement.item for settlement in batch])
        return ()

    def _log_refused(self, settlement: Settlement[object], error: Exception) -> None:
        log.error("settle refused", worker=self.name, row=str(settlement.item.id), error=str(error))
        self._release_slots([settlement.item])

    def _release_slots(self, items: Sequence[ClaimedRow]) -> None:
        for item in items:
            in_flight = self._in_flight.get(item.id)
            if in_flight is not None and (in_flight.item is item or in_flight.item.lease == item.lease):
                del self._in_flight[item.id]
        self._slot_freed.set()
        self._settle_rounds += 1
        if self._is_capped and self._listener is not None:
            self._listener.wake()

    def _is_current(self, item: ClaimedRow) -> bool:
        in_flight = self._in_flight.get(item.id)
        return in_flight is not None and in_flight.item.lease == item.lease

    # Extending leases

    async def _heartbeat_loop(self) -> None:
        while True:
            await asyncio.sleep(min(self.config.hold / 3, self.config.handler_timeout).total_seconds())
            self._cancel_overdue()
            items = [in_flight.item for in_flight in self._in_flight.values()]
            if not items:
                continue
            try:
                async with self.db.autocommit() as tx:
                    lost = await self.lane.extend(tx, items, self.config.hold)
            except PabalError as error:
                log.warning("heartbeat missed", worker=self.name, rows=len(items), error=str(error))
                continue
            for item in items:
                if item.id in lost and self._is_current(item):
                    self._abandon(item.id)

    def _cancel_overdue(self) -> None:
        """Cancel handlers that exceed the timeout. Their rows are settled as failed attempts."""
        oldest_start = monotonic() - self.config.handler_timeout.total_seconds()
        for in_flight in self._in_flight.values():
            if in_flight.started_at < oldest_start and not in_flight.is_overdue and not in_flight.task.done():
                log.warning("handler overdue", worker=self.name, lane=self.lane.name, row=str(in_flight.item.id))
                in_flight.is_overdue = True
                in_flight.task.cancel()

    def _abandon(self, row_id: UUID) -> None:
        """Cancel the handler of a row whose lease is lost, without settling the row."""
        in_flight = self._in_flight.pop(row_id, None)
        if in_flight is not None:
            log.warning("lease lost", worker=self.name, lane=self.lane.name, row=str(row_id))
            in_flight.task.cancel()
            self._slot_freed.set()

    # Stopping

    async def _drain(self) -> None:
        tasks = [in_flight.task for in_flight in self._in_flight.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=self.config.shutdown_grace.total_seconds())
        unfinished = [in_flight for in_flight in self._in_flight.values() if not in_flight.task.done()]
        for in_flight in unfinished:
            in_flight.task.cancel()
            del self._in_flight[in_flight.item.id]
        try:
            if unfinished:
                async with self.db.transaction() as tx:
                    await self.lane.release(tx, [in_flight.item for in_flight in unfinished])
            async with asyncio.timeout(self.config.shutdown_grace.total_seconds()):
                while self._in_flight:  # the settle loop still runs and settles the finished rows
                    self._slot_freed.clear()
                    await self._slot_freed.wait()
        except (PabalError, TimeoutError) as error:
            log.warning("rows not released", worker=self.name, rows=len(self._in_flight), error=str(error))


@dataclass(frozen=True, slots=True)
class SlotShare:
    """How many rows a part of a claim may take, and whether its own maximum is the reason."""

    limit: int
    is_capped: bool


def share_slots(maxima: Sequence[int | None], free: int) -> list[SlotShare]:
    """Divide the free slots evenly. What one part may not use is left to those after it.

    Every part may take one row, also if there are more parts than slots: most of them have none, and the claim stops
    when all slots are used.
    """
    shares: list[SlotShare] = []
    for index, maximum in enumerate(maxima):
        share = max(1, -(-free // (len(maxima) - index)))
        limit = share if maximum is None else max(min(share, maximum), 0)
        free = max(free - limit, 0)
        shares.append(SlotShare(limit, limit < share))
    return shares


def retry_from_exception(error: BaseException) -> Retry:
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 the exception is foreign code, and its text may fail as well
        text = "the exception has no text"
    return Retry(
        f"{type(error).__name__}: {text}",
        code=type(error).__name__,
        stack="".join(traceback.format_exception(error)),
    )
