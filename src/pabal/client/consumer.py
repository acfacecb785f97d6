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

from pabal.client import calls
from pabal.client.calls import GIVEN_BACK, Claimed, Nack
from pabal.client.errors import ClientError, Refused, TooMany, Unavailable
from pabal.client.wire import Credentials, Flow

Got = TypeVar("Got")

log = logging.getLogger(__name__)

PAUSE = 1.0
"""Seconds between two tries while the hub is away."""
LAST = 5.0
"""Seconds the last look for events may take, and the giving back."""


class Do(Protocol):
    """Runs a flow."""

    def __call__(self, flow: Flow[Got]) -> Coroutine[Any, Any, Got]: ...


@dataclass(slots=True)
class Consumer:
    """Handles the events of one service until it is told to stop."""

    do: Do
    who: Credentials
    handle: Callable[[Claimed], Any]
    limit: int
    hands: int
    lease: int
    wait: float
    grace: float
    _held: dict[str, "asyncio.Task[None]"] = field(init=False, default_factory=dict)
    _ended: dict[str, Nack | None] = field(init=False, default_factory=dict)
    _work_done: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _hands_free: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _stopping: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _threads: ThreadPoolExecutor = field(init=False)

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop`, then finish or give back what is held."""
        self._threads = ThreadPoolExecutor(self.hands, "pabal handler")
        loops = [asyncio.create_task(each) for each in (self._claims(), self._settles(), self._keeps())]
        told = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({told, *loops}, return_when=asyncio.FIRST_COMPLETED)
            for each in loops:
                if each.done():
                    each.result()  # one that broke takes the consumer with it, loudly
            self._stopping.set()
            await asyncio.wait(loops[:1], timeout=self.wait + LAST)
            await self._finish()
        finally:
            self._stopping.set()
            await asyncio.wait(loops[:1], timeout=LAST)  # the hub still looks for us; what it finds is not left lying
            for each in (told, *loops):
                each.cancel()
            await asyncio.gather(told, *loops, return_exceptions=True)
            await self._give_back()
            self._threads.shutdown(wait=False, cancel_futures=True)

    # Claiming

    async def _claims(self) -> None:
        while not self._stopping.is_set():
            free = self.hands - len(self._held)
            if free <= 0:
                self._hands_free.clear()
                await self._unless_stopped(self._hands_free.wait())
                continue
            look = calls.claim(self.who, limit=min(self.limit, free), wait=self.wait, lease=self.lease)
            try:
                found = await self.do(look)
            except (Unavailable, TooMany) as error:
                log.warning("hub away: %s", error)
                await self._unless_stopped(asyncio.sleep(PAUSE))
                continue
            for event in found:
                self._held[event.receipt] = asyncio.create_task(self._work(event))

    async def _unless_stopped(self, what: Awaitable[object]) -> None:
        both = {asyncio.ensure_future(what), asyncio.ensure_future(self._stopping.wait())}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in both:
                each.cancel()

    # Handling

    async def _work(self, event: Claimed) -> None:
        try:
            said = calls.meant(await self._handled(event))
        except asyncio.CancelledError as error:
            me = asyncio.current_task()
            if me is None or me.cancelling():  # by us: the event is lost or given back
                raise
            said = calls.meant(error)  # by something the handler waited for: a failure as any other
        except Exception as error:  # noqa: BLE001 whatever it is, the hub hears of it
            said = calls.meant(error)
        self._ended[event.receipt] = said
        self._work_done.set()

    async def _handled(self, event: Claimed) -> object:
        if inspect.iscoroutinefunction(self.handle):
            return await self.handle(event)
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        said = await loop.run_in_executor(self._threads, lambda: context.run(self.handle, event))
        return await said if inspect.isawaitable(said) else said

    # Settling

    async def _settles(self) -> None:
        while True:
            await self._work_done.wait()
            self._work_done.clear()
            try:
                await self._settle_all()
            except (Unavailable, TooMany) as error:
                log.warning("settle delayed: %d events: %s", len(self._ended), error)
                await asyncio.sleep(PAUSE)
                self._work_done.set()

    async def _settle_all(self) -> None:
        """Settle what has ended: all that is done in one call, all that failed alike in another."""
        alike: defaultdict[Nack | None, list[str]] = defaultdict(list)
        for receipt, said in self._ended.items():
            alike[said].append(receipt)
        for said, receipts in alike.items():
            await self._settle(receipts, said)

    async def _settle(self, receipts: list[str], said: Nack | None) -> None:
        try:
            ends = await self.do(calls.nack(self.who, receipts, said) if said else calls.ack(self.who, receipts))
        except TooMany:
            raise
        except Refused as error:
            log.error("settle refused: %d events are left to their leases: %s", len(receipts), error)
        else:
            if lost := sum(not each.held for each in ends):
                log.warning("lease lost: %d of %d events", lost, len(receipts))
        for receipt in receipts:
            self._let_go(receipt)

    def _let_go(self, receipt: str) -> None:
        self._ended.pop(receipt, None)
        self._held.pop(receipt, None)
        self._hands_free.set()

    # Keeping leases

    async def _keeps(self) -> None:
        while True:
            await asyncio.sleep(self.lease / 3)
            try:
                ends = await self.do(calls.extend(self.who, [*self._held], self.lease))
            except (Unavailable, TooMany) as error:
                log.warning("heartbeat missed: %d events: %s", len(self._held), error)
                continue
            for each in ends:
                if not each.held:
                    self._lose(each.receipt)

    def _lose(self, receipt: str) -> None:
        """An event that is no longer ours: its handler is told by being cancelled, and nothing is settled."""
        handler = self._held.get(receipt)
        if handler is not None and receipt not in self._ended:  # else it was settled this moment, or will say so
            log.warning("lease lost: a handler is cancelled")
            handler.cancel()
            self._let_go(receipt)

    # Stopping

    async def _finish(self) -> None:
        """Let the handlers end, and what they said be settled, for as long as the grace lasts."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.grace):
                while self._held:
                    self._hands_free.clear()
                    await self._hands_free.wait()

    async def _give_back(self) -> None:
        """Cancel what still runs, and give it back; what ended meanwhile is settled."""
        for handler in self._held.values():
            handler.cancel()
        try:
            async with asyncio.timeout(LAST):
                if self._held:
                    await asyncio.wait(self._held.values())
                await self._settle_all()
                await self.do(calls.nack(self.who, [*self._held], GIVEN_BACK))
        except (ClientError, TimeoutError) as error:
            log.warning("left to their leases: %d events: %s", len(self._held), error)
