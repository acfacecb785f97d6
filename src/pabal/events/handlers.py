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
from pabal.db.errors import CheckViolation, ForeignKeyViolation
from pabal.db.pool import Database
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.events.events import like_pattern
from pabal.events.lane import LANE, ClaimedEvent, EventLane
from pabal.queue.outcome import Outcome, Retry
from pabal.queue.worker import ClaimFilter

Q = load_queries(__file__)

SEEN_INTERVAL = timedelta(hours=1)
"""How often a program at work is written down as seen."""
MAX_UNSEEN_DAYS = 7
"""After so many days the subscription of a program nobody has seen is given up; its next start takes it up again."""
HANDLER_TIMEOUT_SLACK = timedelta(seconds=10)
MAX_CACHED_EVENT_TYPES = 10_000
"""Types of events whose handler is remembered."""


@dataclass(frozen=True, slots=True)
class EventHandler:
    """What takes the events of some types for one service."""

    event_types: tuple[str, ...]
    service: str
    run: Callable[[ClaimedEvent], Awaitable[Outcome]]
    concurrency: int
    timeout: timedelta

    def matches(self, event: ClaimedEvent) -> bool:
        return event.target_service == self.service and any(fnmatchcase(event.event_type, e) for e in self.event_types)


class HandlerLane(EventLane):
    """The event lane, as far as it is handled: a claim is for one handler, `besides` what others before it take."""

    async def claim(self, tx: Tx, limit: int, hold: timedelta, holder: str, **claim_filter: Any) -> list[ClaimedEvent]:
        besides = claim_filter.pop("besides")
        if besides:  # no pattern says "but not": what is due is asked for by its own name
            types = await tx.column(Q.list_due_event_types, **claim_filter, besides=besides)
            if not types:
                return []
            claim_filter["patterns"] = like_patterns(types)
        return await super().claim(tx, limit, hold, holder, **claim_filter)


@dataclass(frozen=True, slots=True)
class EventHandlers:
    """All handlers of a program; the first that matches takes the event."""

    handlers: tuple[EventHandler, ...]
    program: str = ""
    in_flight: Counter[int] = field(init=False, default_factory=Counter)
    """How many events each handler has in its hands, by its place."""
    deadlines: Sequence[Deadline] = field(init=False)
    """When each handler has taken too long, by its place."""
    handler_index_by_type: dict[tuple[str, str], int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "deadlines", [Deadline(handler.timeout.total_seconds()) for handler in self.handlers])

    @property
    def services(self) -> list[str]:
        return sorted({handler.service for handler in self.handlers})

    @property
    def event_types_by_service(self) -> dict[str, list[str]]:
        """Which types of each service's events we take."""
        types: dict[str, dict[str, None]] = {service: {} for service in self.services}
        for handler in self.handlers:
            types[handler.service] |= dict.fromkeys(handler.event_types)
        return {service: [*each] for service, each in types.items()}

    @property
    def concurrency(self) -> int:
        return sum(handler.concurrency for handler in self.handlers)

    @property
    def handler_timeout(self) -> timedelta:
        """What the worker gives a row in all: its handler's own limit comes first."""
        return max(handler.timeout for handler in self.handlers) + HANDLER_TIMEOUT_SLACK

    async def handle(self, event: ClaimedEvent) -> Outcome:
        place = self._handler_index(event)
        handler, deadline = self.handlers[place], self.deadlines[place]
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        self.in_flight[place] += 1
        deadline.set(task)
        try:
            return await handler.run(event)
        except asyncio.CancelledError:
            if deadline.clear(task):
                return Retry(f"took longer than {handler.timeout.total_seconds():g} s", code="timeout")
            raise
        finally:
            deadline.clear(task)
            self.in_flight[place] -= 1

    def _handler_index(self, event: ClaimedEvent) -> int:
        """Whose it is. Types are few and events many, so it is looked up once for each type."""
        known = self.handler_index_by_type.get((event.target_service, event.event_type))
        if known is None:
            known = next(place for place, handler in enumerate(self.handlers) if handler.matches(event))
            if len(self.handler_index_by_type) >= MAX_CACHED_EVENT_TYPES:
                self.handler_index_by_type.clear()
            self.handler_index_by_type[event.target_service, event.event_type] = known
        return known

    async def schedule(self, db: Database) -> Sequence[ClaimFilter]:
        """The handlers whose service has something due and is neither paused nor kept out: the idlest first.

        A hand that is freed alone goes to the first, and must not always find the same one there.
        """
        async with db.autocommit() as tx:
            due = {*await LANE.services_with_due_events(tx)} & {*self.services}
            idle = (
                {*await tx.column(Q.list_unavailable_services, services=[*due], program=self.program)}
                if due
                else set[str]()
            )
        places = [place for place, handler in enumerate(self.handlers) if handler.service in due - idle]
        return [self._claim_filter(place) for place in sorted(places, key=lambda each: self.in_flight[each])]

    def _claim_filter(self, index: int) -> ClaimFilter:
        handler = self.handlers[index]
        before = [each for each in self.handlers[:index] if each.service == handler.service]
        taken = [
            one
            for each in before
            for one in each.event_types
            if any(patterns_overlap(one, own) for own in handler.event_types)
        ]
        return {
            "service": handler.service,
            "patterns": like_patterns(handler.event_types) if taken or "*" not in handler.event_types else None,
            "besides": like_patterns(taken),
            "most": handler.concurrency - self.in_flight[index],
        }

    async def subscribe_services(self, tx: Tx) -> None:
        """Subscribe our services to what we handle, so that broadcasts reach them. A pause stays a pause."""
        for service, types in self.event_types_by_service.items():
            try:
                await tx.run(
                    Q.upsert_handler_subscription,
                    service=service,
                    program=self.program,
                    event_types=types,
                    touch=SEEN_INTERVAL,
                )
            except ForeignKeyViolation:
                raise NotFound(f"there is no service {service}: `pabal service add {service}` makes one") from None
            except CheckViolation:
                raise Invalid.of_field(
                    "event_types", f"{types} are not event types such as order.paid or order.*"
                ) from None

    async def mark_seen(self, tx: Tx) -> None:
        """Say that we are at work; most of the time there is nothing to write."""
        await tx.run(Q.mark_seen, services=self.services, program=self.program, touch=SEEN_INTERVAL)


async def disable_unseen_programs(tx: Tx, batch: int) -> int:
    """Give up the subscriptions of programs that nobody has seen for long; how many."""
    return await tx.run(Q.disable_unseen_programs, days=MAX_UNSEEN_DAYS, batch=batch)


def patterns_overlap(one: str, other: str) -> bool:
    """Whether some type may fit both patterns."""
    if "*" not in one:
        return fnmatchcase(one, other)
    if "*" not in other:
        return fnmatchcase(other, one)
    heads = one.partition("*")[0], other.partition("*")[0]
    return heads[0].startswith(heads[1]) or heads[1].startswith(heads[0])


def like_patterns(event_types: Iterable[str]) -> list[str]:
    return [like_pattern(each) for each in event_types]
