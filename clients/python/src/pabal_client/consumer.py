"""The consumer: claims as many events as it has free slots, handles them concurrently, settles them in batches.

Three loops that never wait for each other: one claims, one settles, one extends leases. An event occupies its slot
until it is settled or lost, so `concurrency` bounds the memory.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from pabal_client.errors import ApiError, ClientError, HubUnavailableError, RateLimitError
from pabal_client.handler_calls import call_handler
from pabal_client.requests import (
    RELEASE_NACK,
    Nack,
    PulledEvent,
    ack_flow,
    claim_flow,
    extend_flow,
    nack_flow,
    nack_from_result,
)
from pabal_client.transport import Flow, ServiceCredentials

ResultT = TypeVar("ResultT")

log = logging.getLogger(__name__)

RETRY_PAUSE = 1.0
"""Seconds between retries while the hub is unavailable."""
SHUTDOWN_TIMEOUT = 5.0
"""Seconds for the last claim to return, and for releasing events."""


class RunFlow(Protocol):
    """Runs a flow with a client."""

    def __call__(self, flow: Flow[ResultT]) -> Coroutine[Any, Any, ResultT]: ...


@dataclass(slots=True)
class Consumer:
    """Handles the events of one service until it is stopped."""

    run_flow: RunFlow
    credentials: ServiceCredentials
    handle: Callable[[PulledEvent], Any]
    limit: int
    concurrency: int
    lease: int
    wait: float
    grace: float
    _in_flight: dict[str, "asyncio.Task[None]"] = field(init=False, default_factory=dict)
    _finished: dict[str, Nack | None] = field(init=False, default_factory=dict)
    _work_done: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _slot_free: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _stopping: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _threads: ThreadPoolExecutor = field(init=False)

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set, then finish or release the claimed events."""
        self._threads = ThreadPoolExecutor(self.concurrency, "pabal handler")
        loops = [
            asyncio.create_task(loop) for loop in (self._claim_loop(), self._settle_loop(), self._heartbeat_loop())
        ]
        stop_requested = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({stop_requested, *loops}, return_when=asyncio.FIRST_COMPLETED)
            for loop in loops:
                if loop.done():
                    loop.result()  # raises: a loop ends only by an error
            self._stopping.set()
            await asyncio.wait(loops[:1], timeout=self.wait + SHUTDOWN_TIMEOUT)
            await self._drain()
        finally:
            self._stopping.set()
            # A claim may still return events, which must be released.
            await asyncio.wait(loops[:1], timeout=SHUTDOWN_TIMEOUT)
            for task in (stop_requested, *loops):
                task.cancel()
            await asyncio.gather(stop_requested, *loops, return_exceptions=True)
            await self._release_all()
            self._threads.shutdown(wait=False, cancel_futures=True)

    # Claiming

    async def _claim_loop(self) -> None:
        while not self._stopping.is_set():
            free = self.concurrency - len(self._in_flight)
            if free <= 0:
                self._slot_free.clear()
                await self._wait_or_stop(self._slot_free.wait())
                continue
            claim = claim_flow(self.credentials, limit=min(self.limit, free), wait=self.wait, lease=self.lease)
            try:
                events = await self.run_flow(claim)
            except (HubUnavailableError, RateLimitError) as error:
                log.warning("hub unavailable: %s", error)
                await self._wait_or_stop(asyncio.sleep(RETRY_PAUSE))
                continue
            for event in events:
                self._in_flight[event.receipt] = asyncio.create_task(self._handle_event(event))

    async def _wait_or_stop(self, awaitable: Awaitable[object]) -> None:
        tasks = {asyncio.ensure_future(awaitable), asyncio.ensure_future(self._stopping.wait())}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    # Handling

    async def _handle_event(self, event: PulledEvent) -> None:
        result: object
        try:
            result = await call_handler(self.handle, event, self._threads)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():  # cancelled by the consumer: the event is lost or released
                raise
            result = error  # cancelled by something the handler awaited: a failed attempt
        except Exception as error:  # noqa: BLE001 any exception is a failed attempt
            result = error
        self._finished[event.receipt] = nack_from_result(result)
        self._work_done.set()

    # Settling

    async def _settle_loop(self) -> None:
        while True:
            await self._work_done.wait()
            self._work_done.clear()
            try:
                await self._settle_all()
            except (HubUnavailableError, RateLimitError) as error:
                log.warning("settle delayed: %d events: %s", len(self._finished), error)
                await asyncio.sleep(RETRY_PAUSE)
                self._work_done.set()

    async def _settle_all(self) -> None:
        """Settle the finished events: one call for those that are done, one for each kind of failure."""
        receipts_by_nack: defaultdict[Nack | None, list[str]] = defaultdict(list)
        for receipt, nack in self._finished.items():
            receipts_by_nack[nack].append(receipt)
        for nack, receipts in receipts_by_nack.items():
            await self._settle(receipts, nack)

    async def _settle(self, receipts: list[str], nack: Nack | None) -> None:
        try:
            results = await self.run_flow(
                nack_flow(self.credentials, receipts, nack) if nack else ack_flow(self.credentials, receipts)
            )
        except RateLimitError:
            raise
        except ApiError as error:
            log.error("settle refused: %d events wait for the end of their leases: %s", len(receipts), error)
        else:
            if lost := sum(not result.held for result in results):
                log.warning("lease lost: %d of %d events", lost, len(receipts))
        for receipt in receipts:
            self._forget(receipt)

    def _forget(self, receipt: str) -> None:
        self._finished.pop(receipt, None)
        self._in_flight.pop(receipt, None)
        self._slot_free.set()

    # Extending leases

    async def _heartbeat_loop(self) -> None:
        while True:
            await asyncio.sleep(self.lease / 3)
            try:
                results = await self.run_flow(extend_flow(self.credentials, [*self._in_flight], self.lease))
            except (HubUnavailableError, RateLimitError) as error:
                log.warning("heartbeat missed: %d events: %s", len(self._in_flight), error)
                continue
            for result in results:
                if not result.held:
                    self._cancel_lost(result.receipt)

    def _cancel_lost(self, receipt: str) -> None:
        """Cancel the handler of an event whose lease is lost; there is nothing to settle."""
        handler = self._in_flight.get(receipt)
        if handler is not None and receipt not in self._finished:  # a finished event is being settled
            log.warning("lease lost: handler cancelled")
            handler.cancel()
            self._forget(receipt)

    # Stopping

    async def _drain(self) -> None:
        """Wait until all handlers have finished and are settled, for at most `grace` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.grace):
                while self._in_flight:
                    self._slot_free.clear()
                    await self._slot_free.wait()

    async def _release_all(self) -> None:
        """Cancel running handlers, settle the finished events and release the others."""
        for handler in self._in_flight.values():
            handler.cancel()
        try:
            async with asyncio.timeout(SHUTDOWN_TIMEOUT):
                if self._in_flight:
                    await asyncio.wait(self._in_flight.values())
                await self._settle_all()
                await self.run_flow(nack_flow(self.credentials, [*self._in_flight], RELEASE_NACK))
        except (ClientError, TimeoutError) as error:
            log.warning("events not released: %d wait for the end of their leases: %s", len(self._in_flight), error)
