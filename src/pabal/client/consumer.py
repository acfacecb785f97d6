"""A consumer: claims as many events as it has free hands, handles them all at once, settles them in batches.

Three loops that never wait for each other: one claims, one settles, one keeps the leases. What is held stays held until
it is settled or lost, so `hands` bounds everything in memory.
"""

import asyncio
import contextvars
import inspect
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from pabal.client.errors import ApiError, ClientError, HubUnavailableError, RateLimitError
from pabal.client.requests import (
    RELEASE_NACK,
    Nack,
    PulledEvent,
    ack_flow,
    claim_flow,
    extend_flow,
    nack_flow,
    nack_from_result,
)
from pabal.client.transport import Flow, ServiceCredentials

ResultT = TypeVar("ResultT")

log = logging.getLogger(__name__)

RETRY_PAUSE = 1.0
"""Seconds between two tries while the hub is away."""
SHUTDOWN_TIMEOUT = 5.0
"""Seconds the last look for events may take, and the giving back."""


class RunFlow(Protocol):
    """Runs a flow."""

    def __call__(self, flow: Flow[ResultT]) -> Coroutine[Any, Any, ResultT]: ...


@dataclass(slots=True)
class Consumer:
    """Handles the events of one service until it is told to stop."""

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
        """Work until `stop`, then finish or give back what is held."""
        self._threads = ThreadPoolExecutor(self.concurrency, "pabal handler")
        loops = [
            asyncio.create_task(each) for each in (self._claim_loop(), self._settle_loop(), self._heartbeat_loop())
        ]
        told = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({told, *loops}, return_when=asyncio.FIRST_COMPLETED)
            for each in loops:
                if each.done():
                    each.result()  # one that broke takes the consumer with it, loudly
            self._stopping.set()
            await asyncio.wait(loops[:1], timeout=self.wait + SHUTDOWN_TIMEOUT)
            await self._drain()
        finally:
            self._stopping.set()
            await asyncio.wait(
                loops[:1], timeout=SHUTDOWN_TIMEOUT
            )  # the hub still looks for us; what it finds is not left lying
            for each in (told, *loops):
                each.cancel()
            await asyncio.gather(told, *loops, return_exceptions=True)
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
            look = claim_flow(self.credentials, limit=min(self.limit, free), wait=self.wait, lease=self.lease)
            try:
                found = await self.run_flow(look)
            except (HubUnavailableError, RateLimitError) as error:
                log.warning("hub away: %s", error)
                await self._wait_or_stop(asyncio.sleep(RETRY_PAUSE))
                continue
            for event in found:
                self._in_flight[event.receipt] = asyncio.create_task(self._handle_event(event))

    async def _wait_or_stop(self, awaitable: Awaitable[object]) -> None:
        both = {asyncio.ensure_future(awaitable), asyncio.ensure_future(self._stopping.wait())}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in both:
                each.cancel()

    # Handling

    async def _handle_event(self, event: PulledEvent) -> None:
        try:
            said = nack_from_result(await self._call_handler(event))
        except asyncio.CancelledError as error:
            me = asyncio.current_task()
            if me is None or me.cancelling():  # by us: the event is lost or given back
                raise
            said = nack_from_result(error)  # by something the handler waited for: a failure as any other
        except Exception as error:  # noqa: BLE001 whatever it is, the hub hears of it
            said = nack_from_result(error)
        self._finished[event.receipt] = said
        self._work_done.set()

    async def _call_handler(self, event: PulledEvent) -> object:
        if inspect.iscoroutinefunction(self.handle):
            return await self.handle(event)
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        said = await loop.run_in_executor(self._threads, lambda: context.run(self.handle, event))
        return await said if inspect.isawaitable(said) else said

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
        """Settle what has ended: all that is done in one call, all that failed alike in another."""
        alike: defaultdict[Nack | None, list[str]] = defaultdict(list)
        for receipt, said in self._finished.items():
            alike[said].append(receipt)
        for said, receipts in alike.items():
            await self._settle(receipts, said)

    async def _settle(self, receipts: list[str], nack: Nack | None) -> None:
        try:
            ends = await self.run_flow(
                nack_flow(self.credentials, receipts, nack) if nack else ack_flow(self.credentials, receipts)
            )
        except RateLimitError:
            raise
        except ApiError as error:
            log.error("settle refused: %d events are left to their leases: %s", len(receipts), error)
        else:
            if lost := sum(not each.held for each in ends):
                log.warning("lease lost: %d of %d events", lost, len(receipts))
        for receipt in receipts:
            self._forget(receipt)

    def _forget(self, receipt: str) -> None:
        self._finished.pop(receipt, None)
        self._in_flight.pop(receipt, None)
        self._slot_free.set()

    # Keeping leases

    async def _heartbeat_loop(self) -> None:
        while True:
            await asyncio.sleep(self.lease / 3)
            try:
                ends = await self.run_flow(extend_flow(self.credentials, [*self._in_flight], self.lease))
            except (HubUnavailableError, RateLimitError) as error:
                log.warning("heartbeat missed: %d events: %s", len(self._in_flight), error)
                continue
            for each in ends:
                if not each.held:
                    self._cancel_lost(each.receipt)

    def _cancel_lost(self, receipt: str) -> None:
        """An event that is no longer ours: its handler is told by being cancelled, and nothing is settled."""
        handler = self._in_flight.get(receipt)
        if handler is not None and receipt not in self._finished:  # else it was settled this moment, or will say so
            log.warning("lease lost: a handler is cancelled")
            handler.cancel()
            self._forget(receipt)

    # Stopping

    async def _drain(self) -> None:
        """Let the handlers end, and what they said be settled, for as long as the grace lasts."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.grace):
                while self._in_flight:
                    self._slot_free.clear()
                    await self._slot_free.wait()

    async def _release_all(self) -> None:
        """Cancel what still runs, and give it back; what ended meanwhile is settled."""
        for handler in self._in_flight.values():
            handler.cancel()
        try:
            async with asyncio.timeout(SHUTDOWN_TIMEOUT):
                if self._in_flight:
                    await asyncio.wait(self._in_flight.values())
                await self._settle_all()
                await self.run_flow(nack_flow(self.credentials, [*self._in_flight], RELEASE_NACK))
        except (ClientError, TimeoutError) as error:
            log.warning("left to their leases: %d events: %s", len(self._in_flight), error)
