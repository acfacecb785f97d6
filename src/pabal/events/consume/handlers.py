"""Handlers: application code in a worker that handles the events of a service.

A program claims only events that its handlers match, each handler up to its free concurrency. Other events stay for
another program of the service, or for a consumer that pulls.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

from pabal.core.deadline import Deadline
from pabal.core.errors import Invalid, NotFound
from pabal.core.event_types import matches_event_pattern, patterns_overlap
from pabal.db.doorbell.channels import POLLED
from pabal.db.errors import CheckViolation
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.events.consume.lane import ClaimedEvent, EventClaimFilter
from pabal.events.events import like_patterns
from pabal.queue.outcome import Outcome, Retry
from pabal.queue.worker import ScheduledClaim

Q = load_queries(__file__)

SEEN_INTERVAL = timedelta(hours=1)
"""How often a running program updates `seen_at`."""
MAX_UNSEEN_DAYS = 7
"""Disable the subscription of a program that did not run for this many days; its next start enables it again."""
HANDLER_TIMEOUT_SLACK = timedelta(seconds=10)
MAX_CACHED_EVENT_TYPES = 10_000
"""Cache the handler of at most this many event types."""


@dataclass(frozen=True, slots=True)
class EventHandler:
    """A function that handles the events of some types for one service."""

    event_types: tuple[str, ...]
    service: str
    run: Callable[[ClaimedEvent], Awaitable[Outcome]]
    concurrency: int
    timeout: timedelta
    retry_schedule: tuple[int, ...] | None = None
    """Seconds before each retry; None means the backoff of the lane."""

    def matches(self, event: ClaimedEvent) -> bool:
        return event.target_service == self.service and any(
            matches_event_pattern(event.event_type, pattern) for pattern in self.event_types
        )


@dataclass(frozen=True, slots=True)
class EventHandlers:
    """All handlers of a program. The first that matches an event handles it."""

    handlers: tuple[EventHandler, ...]
    program: str = ""
    in_flight: list[int] = field(init=False)
    """The number of events that each handler is handling, by index."""
    deadlines: Sequence[Deadline] = field(init=False)
    """The timeout of each handler, by index."""
    handler_index_by_type: dict[tuple[str, str], int] = field(init=False, default_factory=dict)
    claim_filters: Sequence[EventClaimFilter] = field(init=False)
    """What each handler claims, by index."""
    handled_services: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "in_flight", [0] * len(self.handlers))
        object.__setattr__(self, "deadlines", [Deadline(handler.timeout.total_seconds()) for handler in self.handlers])
        object.__setattr__(self, "claim_filters", [*map(self._claim_filter, range(len(self.handlers)))])
        object.__setattr__(self, "handled_services", frozenset(self.services))

    @property
    def services(self) -> list[str]:
        return sorted({handler.service for handler in self.handlers})

    @property
    def event_types_by_service(self) -> dict[str, list[str]]:
        """The event types that the handlers of each service match."""
        event_types: dict[str, dict[str, None]] = {service: {} for service in self.services}
        for handler in self.handlers:
            event_types[handler.service] |= dict.fromkeys(handler.event_types)
        return {service: [*types] for service, types in event_types.items()}

    @property
    def concurrency(self) -> int:
        return sum(handler.concurrency for handler in self.handlers)

    @property
    def handler_timeout(self) -> timedelta:
        """The worker's limit for any event: longer than the timeout of every handler, so that theirs applies first."""
        return max(handler.timeout for handler in self.handlers) + HANDLER_TIMEOUT_SLACK

    async def handle(self, event: ClaimedEvent) -> Outcome:
        index = self._handler_index(event)
        handler, deadline = self.handlers[index], self.deadlines[index]
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        self.in_flight[index] += 1
        deadline.set(task)
        try:
            return await handler.run(event)
        except asyncio.CancelledError:
            if deadline.clear(task):
                return Retry(f"took longer than {handler.timeout.total_seconds():g} s", code="timeout")
            raise
        finally:
            deadline.clear(task)
            self.in_flight[index] -= 1

    def _handler_index(self, event: ClaimedEvent) -> int:
        """Find the handler of an event. There are few types and many events, so the result is cached by type."""
        key = event.target_service, event.event_type
        index = self.handler_index_by_type.get(key)
        if index is None:
            index = next(index for index, handler in enumerate(self.handlers) if handler.matches(event))
            if len(self.handler_index_by_type) >= MAX_CACHED_EVENT_TYPES:
                self.handler_index_by_type.clear()
            self.handler_index_by_type[key] = index
        return index

    @property
    def has_schedules(self) -> bool:
        return any(handler.retry_schedule for handler in self.handlers)

    def retry_schedule(self, event: ClaimedEvent) -> tuple[int, ...] | None:
        """The schedule of the handler of this event."""
        return self.handlers[self._handler_index(event)].retry_schedule

    def is_handled_service(self, topic: str) -> bool:
        """Whether a wakeup concerns this program. The empty topic stands for all services, and so does polling."""
        return topic in {"", POLLED} or topic in self.handled_services

    async def schedule(self) -> Sequence[ScheduledClaim[EventClaimFilter]]:
        """List the claims of all handlers, the least busy first.

        A single free slot goes to the first handler with a due event, which must not always be the same one. The claim
        itself leaves out handlers that are paused.
        """
        indexes = sorted(range(len(self.handlers)), key=lambda index: self.in_flight[index])
        return [
            ScheduledClaim(self.claim_filters[index], self.handlers[index].concurrency - self.in_flight[index])
            for index in indexes
        ]

    def _claim_filter(self, index: int) -> EventClaimFilter:
        """What the handler claims: the types it matches, except those that earlier handlers take."""
        handler = self.handlers[index]
        earlier_types = [
            event_type
            for earlier in self.handlers[:index]
            if earlier.service == handler.service
            for event_type in earlier.event_types
            if any(patterns_overlap(event_type, pattern) for pattern in handler.event_types)
        ]
        is_filtered = bool(earlier_types) or "*" not in handler.event_types
        return EventClaimFilter(
            handler.service,
            like_patterns(handler.event_types) if is_filtered else None,
            like_patterns(earlier_types),
            self.program,
        )

    async def subscribe_services(self, tx: Tx) -> None:
        """Subscribe the services to the types that are handled, so that they receive broadcasts. Keeps a pause."""
        for service, event_types in self.event_types_by_service.items():
            if await tx.value(Q.lock_handled_service, service=service) is None:
                raise NotFound(f"No such service: {service}. Add it with `pabal service add {service}`")
            try:
                await tx.run(
                    Q.upsert_handler_subscription,
                    service=service,
                    program=self.program,
                    event_types=event_types,
                    seen_interval=SEEN_INTERVAL,
                )
            except CheckViolation:
                raise Invalid.of_field(
                    "event_types", f"{event_types} are not event types such as order.paid or order.*"
                ) from None

    async def mark_seen(self, tx: Tx) -> None:
        """Record that the program is running; writes at most once per SEEN_INTERVAL."""
        await tx.run(Q.mark_seen, services=self.services, program=self.program, seen_interval=SEEN_INTERVAL)


async def disable_unseen_programs(tx: Tx, batch: int) -> int:
    """Disable the subscriptions of programs that did not run for MAX_UNSEEN_DAYS; return how many."""
    return await tx.run(Q.disable_unseen_programs, days=MAX_UNSEEN_DAYS, batch=batch)
