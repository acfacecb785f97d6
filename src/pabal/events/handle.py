"""Handlers: code in a worker that takes the events of a service."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Any

from pabal.core.errors import Invalid, NotFound
from pabal.core.log import get_logger
from pabal.db.faults import Orphan, Unfit
from pabal.db.pool import Database
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.events.lane import LANE, HeldEvent
from pabal.queue.outcome import Outcome, Retry, Snooze

Q = beside(__file__)
log = get_logger()

UNHANDLED = timedelta(seconds=30)
"""How long an event that no handler matches waits before the next look."""
BUSY = timedelta(seconds=1)
"""How long one waits that came to a handler with no hand free for too long."""


@dataclass(frozen=True, slots=True)
class Handler:
    """What takes the events of some types for one service."""

    event_types: tuple[str, ...]
    service: str
    run: Callable[[HeldEvent], Awaitable[Outcome]]
    concurrency: int
    timeout: timedelta
    hands: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "hands", asyncio.Semaphore(self.concurrency))

    def takes(self, event: HeldEvent) -> bool:
        return event.target_service == self.service and any(fnmatchcase(event.event_type, e) for e in self.event_types)


@dataclass(frozen=True, slots=True)
class Handlers:
    """All handlers of a worker; the first that matches takes the event."""

    every: tuple[Handler, ...]
    under_way: Counter[str] = field(init=False, default_factory=Counter)

    @property
    def services(self) -> list[str]:
        return sorted({handler.service for handler in self.every})

    @property
    def hands(self) -> int:
        return sum(handler.concurrency for handler in self.every)

    @property
    def longest(self) -> timedelta:
        """What the worker gives a row in all: its handler's own limit, and as long again for waiting its turn."""
        return 2 * max(handler.timeout for handler in self.every)

    async def handle(self, event: HeldEvent) -> Outcome:
        handler = next((handler for handler in self.every if handler.takes(event)), None)
        if handler is None:
            log.warning("event unhandled", type=event.event_type, service=event.target_service, id=str(event.id))
            return Snooze(f"no handler takes {event.event_type}", UNHANDLED)
        try:
            async with asyncio.timeout(handler.timeout.total_seconds()):
                await handler.hands.acquire()
        except TimeoutError:
            return Snooze("all hands of its handler are full", BUSY)
        self.under_way[handler.service] += 1
        try:
            return await self._run(handler, event)
        finally:
            self.under_way[handler.service] -= 1
            handler.hands.release()

    async def _run(self, handler: Handler, event: HeldEvent) -> Outcome:
        limit = asyncio.timeout(handler.timeout.total_seconds())
        try:
            async with limit:
                return await handler.run(event)
        except TimeoutError:  # the handler's own, or ours
            if not limit.expired():
                raise
            return Retry(f"took longer than {handler.timeout.total_seconds():g} s", code="timeout")

    async def rota(self, db: Database) -> Sequence[dict[str, Any]]:
        """The services of ours with something due, neither paused nor kept out: those with the fewest under way first.

        A hand that is freed alone goes to the first, and must not always find the same one there.
        """
        async with db.autocommit() as tx:
            due = {*await LANE.rota(tx)} & {*self.services}
            idle = {*await tx.column(Q.idle, services=[*due])} if due else set[str]()
        return [{"service": service} for service in sorted(due - idle, key=lambda each: (self.under_way[each], each))]

    async def announce(self, tx: Tx) -> None:
        """Subscribe our services to what we handle, so that broadcasts reach them. A pause stays a pause."""
        for service in self.services:
            types = [*dict.fromkeys(each for handler in self.of(service) for each in handler.event_types)]
            try:
                await tx.run(Q.announce, service=service, event_types=types)
            except Orphan:
                raise NotFound(f"there is no service {service}: `pabal service add {service}` makes one") from None
            except Unfit:
                raise Invalid.one("event_types", f"{types} are not event types such as order.paid or order.*") from None

    def of(self, service: str) -> Iterable[Handler]:
        return (handler for handler in self.every if handler.service == service)
