"""Handlers that run in the transaction that settles their events: both happen, or neither."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

from pabal.core.backoff import spread
from pabal.core.errors import Unavailable
from pabal.core.log import get_logger
from pabal.db.errors import RetryableError
from pabal.db.pool import Database
from pabal.db.tx import Tx
from pabal.events.consume.lane import LANE, ClaimedEvent
from pabal.queue.lane import Settlement
from pabal.queue.outcome import Outcome
from pabal.queue.worker import MAX_RETRY_PAUSE, SETTLED, Settled, retry_from_exception

log = get_logger()

FIRST_RETRY_PAUSE = 0.05

WaitingEvent = tuple[ClaimedEvent, asyncio.Future[Settled]]
BatchHandler = Callable[[Tx, Sequence[ClaimedEvent]], Awaitable[Sequence[Outcome]]]
"""Handles the first of these events, at least one, and returns an outcome for each event it handled."""


class TransactionalHandler:
    """Lets a worker handle its events in batches, each batch in the transaction that settles it.

    A transaction takes the events that wait, of every publisher in turn, and as many as the handler wants. Those that
    it leaves and those that are claimed meanwhile wait for the next.
    """

    def __init__(self, db: Database, handle_batch: BatchHandler) -> None:
        self._db = db
        self._handle_batch = handle_batch
        self._waiting: list[WaitingEvent] = []
        self._running: list[WaitingEvent] = []
        self._runner: asyncio.Task[None] | None = None

    async def handle(self, event: ClaimedEvent) -> Settled:
        """Return when the event is handled and settled, or when its lease is lost."""
        settled: asyncio.Future[Settled] = asyncio.get_running_loop().create_future()
        self._waiting.append((event, settled))
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._run())
        try:
            return await settled
        except asyncio.CancelledError:
            self._cancel_abandoned_run()
            raise

    def _cancel_abandoned_run(self) -> None:
        """Roll back the running transaction if the worker has cancelled all events.

        A worker that stops releases these rows next and would otherwise wait for the transaction that locks them.
        """
        if self._runner is not None and not pending_futures([*self._running, *self._waiting]):
            self._runner.cancel()
            self._runner = None

    async def _run(self) -> None:
        pause = FIRST_RETRY_PAUSE
        while self._waiting:
            # The worker cancels the handler of an event whose lease it lost or released.
            batch, self._waiting = take_turns([entry for entry in self._waiting if not entry[1].done()]), []
            self._running = batch
            try:
                _, remaining = await self._handle_first([event for event, _ in batch])
            except (RetryableError, Unavailable) as error:
                log.warning("transaction delayed", lane=LANE.name, rows=len(batch), error=str(error))
                self._waiting = batch + self._waiting
                await asyncio.sleep(spread(pause))
                pause = min(pause * 2, MAX_RETRY_PAUSE)
            except asyncio.CancelledError:
                if is_being_cancelled():
                    raise
                for _, settled in batch:  # raised by something the handler awaited: the worker settles them as failed
                    settled.cancel()
            except Exception as error:  # noqa: BLE001 the worker settles each event as failed
                for settled in pending_futures(batch):
                    settled.set_exception(error)
            else:
                pause = FIRST_RETRY_PAUSE
                remaining_ids = {event.id for event in remaining}
                for settled in pending_futures([entry for entry in batch if entry[0].id not in remaining_ids]):
                    settled.set_result(SETTLED)
                self._waiting = [entry for entry in batch if entry[0].id in remaining_ids] + self._waiting

    async def handle_events(self, events: Sequence[ClaimedEvent]) -> set[UUID]:
        """Handle and settle events in as many transactions as the handler needs; return the ids of those settled.

        If the handler raises, its transaction rolls back and every event of it runs in a transaction of its own, so
        that one bad event blocks no other. An event whose lease is lost is skipped.
        """
        settled: set[UUID] = set()
        remaining = [*events]
        while remaining:
            settled_now, remaining = await self._handle_first(remaining)
            settled |= settled_now
        return settled

    async def _handle_first(self, events: Sequence[ClaimedEvent]) -> tuple[set[UUID], list[ClaimedEvent]]:
        """Handle the first events in one transaction. Return the settled ids and the events left."""
        try:
            return await self._handle_and_settle(events)
        except (RetryableError, Unavailable):
            raise
        except Exception as error:  # noqa: BLE001 the fault of one event, not of the batch
            return await self._handle_individually(events, error), []

    async def _handle_and_settle(self, events: Sequence[ClaimedEvent]) -> tuple[set[UUID], list[ClaimedEvent]]:
        """One transaction: lock the leases, call the handler, settle. Return the settled ids and the events left."""
        async with self._db.transaction() as tx:
            leased_ids = await LANE.lock_leased(tx, events)
            leased = [event for event in events if event.id in leased_ids]
            if len(leased) < len(events):
                log.warning("lease lost", lane=LANE.name, rows=len(events) - len(leased))
            outcomes = await self._handle_batch(tx, leased) if leased else ()
            settled = await LANE.settle(tx, [Settlement(*pair) for pair in zip(leased, outcomes, strict=False)])
        return settled, leased[len(outcomes) :]

    async def _handle_individually(self, events: Sequence[ClaimedEvent], error: Exception) -> set[UUID]:
        """Handle each event alone. An event that fails alone is settled with its error.

        If the database refuses that too, the event is left until its lease expires.
        """
        if len(events) > 1:
            return {event_id for event in events for event_id in await self.handle_events([event])}
        log.error("handler failed", lane=LANE.name, row=str(events[0].id), error=f"{type(error).__name__}: {error}")
        try:
            async with self._db.transaction() as tx:
                return await LANE.settle(tx, [Settlement(events[0], retry_from_exception(error))])
        except (RetryableError, Unavailable):
            raise
        except Exception as refusal:  # noqa: BLE001 must not fail the other events of the batch
            log.error("settle refused", lane=LANE.name, row=str(events[0].id), error=str(refusal))
            return set()


def take_turns(waiting: Sequence[WaitingEvent]) -> list[WaitingEvent]:
    """Order the events so that every publisher has its turn, and each publisher's events keep their order."""
    turns: Counter[str] = Counter()
    numbered: list[tuple[int, WaitingEvent]] = []
    for entry in waiting:
        source = entry[0].source_service
        numbered.append((turns[source], entry))
        turns[source] += 1
    return [entry for _, entry in sorted(numbered, key=lambda pair: pair[0])]


def pending_futures(batch: Sequence[WaitingEvent]) -> "list[asyncio.Future[Settled]]":
    """The futures of the events whose handler the worker has not cancelled."""
    return [settled for _, settled in batch if not settled.done()]


def is_being_cancelled() -> bool:
    """Whether the current task itself was cancelled, not something it awaits."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
