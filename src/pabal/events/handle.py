"""Handlers: code in a worker that takes the events of a service.

A program claims what its own handlers take, each handler as much as it has hands free. What none of them takes is left
to whoever else there is: another program of the service, or somebody who pulls.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Any, cast

from pabal.core.deadline import Deadline
from pabal.core.errors import Invalid, NotFound
from pabal.db.faults import Orphan, Unfit
from pabal.db.pool import Database
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.events.lane import LANE, EventLane, HeldEvent
from pabal.events.read import as_like
from pabal.queue.outcome import Outcome, Retry
from pabal.queue.worker import Whom

Q = beside(__file__)

TOUCH = timedelta(hours=1)
"""How often a program at work is written down as seen."""
UNSEEN_DAYS = 7
"""After so many days the subscription of a program nobody has seen is given up; its next start takes it up again."""
SLACK = timedelta(seconds=10)
MOST_TYPES = 10_000
"""Types of events whose handler is remembered."""


@dataclass(frozen=True, slots=True)
class Handler:
    """What takes the events of some types for one service."""

    event_types: tuple[str, ...]
    service: str
    run: Callable[[HeldEvent], Awaitable[Outcome]]
    concurrency: int
    timeout: timedelta

    def takes(self, event: HeldEvent) -> bool:
        return event.target_service == self.service and any(fnmatchcase(event.event_type, e) for e in self.event_types)


class Handled(EventLane):
    """The event lane, as far as it is handled: a claim is for one handler, `besides` what others before it take."""

    async def claim(self, tx: Tx, limit: int, hold: timedelta, holder: str, **whom: Any) -> list[HeldEvent]:
        besides = whom.pop("besides")
        if besides:  # no pattern says "but not": what is due is asked for by its own name
            types = await tx.column(Q.types, **whom, besides=besides)
            if not types:
                return []
            whom["patterns"] = likes(types)
        return await super().claim(tx, limit, hold, holder, **whom)


@dataclass(frozen=True, slots=True)
class Handlers:
    """All handlers of a program; the first that matches takes the event."""

    every: tuple[Handler, ...]
    program: str = ""
    under_way: Counter[int] = field(init=False, default_factory=Counter)
    """How many events each handler has in its hands, by its place."""
    deadlines: Sequence[Deadline] = field(init=False)
    """When each handler has taken too long, by its place."""
    places: dict[tuple[str, str], int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "deadlines", [Deadline(handler.timeout.total_seconds()) for handler in self.every])

    @property
    def services(self) -> list[str]:
        return sorted({handler.service for handler in self.every})

    @property
    def taken(self) -> dict[str, list[str]]:
        """Which types of each service's events we take."""
        types: dict[str, dict[str, None]] = {service: {} for service in self.services}
        for handler in self.every:
            types[handler.service] |= dict.fromkeys(handler.event_types)
        return {service: [*each] for service, each in types.items()}

    @property
    def hands(self) -> int:
        return sum(handler.concurrency for handler in self.every)

    @property
    def longest(self) -> timedelta:
        """What the worker gives a row in all: its handler's own limit comes first."""
        return max(handler.timeout for handler in self.every) + SLACK

    async def handle(self, event: HeldEvent) -> Outcome:
        place = self._place(event)
        handler, deadline = self.every[place], self.deadlines[place]
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        self.under_way[place] += 1
        deadline.set(task)
        try:
            return await handler.run(event)
        except asyncio.CancelledError:
            if deadline.clear(task):
                return Retry(f"took longer than {handler.timeout.total_seconds():g} s", code="timeout")
            raise
        finally:
            deadline.clear(task)
            self.under_way[place] -= 1

    def _place(self, event: HeldEvent) -> int:
        """Whose it is. Types are few and events many, so it is looked up once for each type."""
        known = self.places.get((event.target_service, event.event_type))
        if known is None:
            known = next(place for place, handler in enumerate(self.every) if handler.takes(event))
            if len(self.places) >= MOST_TYPES:
                self.places.clear()
            self.places[event.target_service, event.event_type] = known
        return known

    async def rota(self, db: Database) -> Sequence[Whom]:
        """The handlers whose service has something due and is neither paused nor kept out: the idlest first.

        A hand that is freed alone goes to the first, and must not always find the same one there.
        """
        async with db.autocommit() as tx:
            due = {*await LANE.rota(tx)} & {*self.services}
            idle = {*await tx.column(Q.idle, services=[*due], program=self.program)} if due else set[str]()
        places = [place for place, handler in enumerate(self.every) if handler.service in due - idle]
        return [self._turn(place) for place in sorted(places, key=lambda each: self.under_way[each])]

    def _turn(self, place: int) -> Whom:
        handler = self.every[place]
        before = [each for each in self.every[:place] if each.service == handler.service]
        taken = [
            one for each in before for one in each.event_types if any(meet(one, own) for own in handler.event_types)
        ]
        return {
            "service": handler.service,
            "patterns": likes(handler.event_types) if taken or "*" not in handler.event_types else None,
            "besides": likes(taken),
            "most": handler.concurrency - self.under_way[place],
        }

    async def announce(self, tx: Tx) -> None:
        """Subscribe our services to what we handle, so that broadcasts reach them. A pause stays a pause."""
        for service, types in self.taken.items():
            try:
                await tx.run(Q.announce, service=service, program=self.program, event_types=types, touch=TOUCH)
            except Orphan:
                raise NotFound(f"there is no service {service}: `pabal service add {service}` makes one") from None
            except Unfit:
                raise Invalid.one("event_types", f"{types} are not event types such as order.paid or order.*") from None

    async def seen(self, tx: Tx) -> None:
        """Say that we are at work; most of the time there is nothing to write."""
        await tx.run(Q.seen, services=self.services, program=self.program, touch=TOUCH)


async def give_up(tx: Tx, batch: int) -> int:
    """Give up the subscriptions of programs that nobody has seen for long; how many."""
    return await tx.run(Q.give_up, days=UNSEEN_DAYS, batch=batch)


def meet(one: str, other: str) -> bool:
    """Whether some type may fit both patterns."""
    if "*" not in one:
        return fnmatchcase(one, other)
    if "*" not in other:
        return fnmatchcase(other, one)
    heads = one.partition("*")[0], other.partition("*")[0]
    return heads[0].startswith(heads[1]) or heads[1].startswith(heads[0])


def likes(event_types: Iterable[str]) -> list[str]:
    return [as_like(each) for each in event_types]
