"""The event lane for handlers with a retry schedule of their own."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from pabal.db.tx import Tx
from pabal.events.consume.handlers import EventHandlers
from pabal.events.consume.lane import ClaimedEvent, EventLane
from pabal.events.push.push_lane import set_scheduled_retries
from pabal.events.push.retry_schedule import scheduled_delay, scheduled_retries
from pabal.queue.lane import Settlement
from pabal.queue.outcome import Outcome, Retry, Snooze


@dataclass(frozen=True, slots=True)
class ScheduledEvent:
    """A failed event with the schedule of its handler."""

    event: ClaimedEvent
    schedule: Sequence[int]

    @property
    def id(self) -> UUID:
        return self.event.id

    @property
    def lease(self) -> UUID:
        return self.event.lease

    @property
    def target_service(self) -> str:
        return self.event.target_service

    @property
    def attempt(self) -> int:
        return self.event.attempt

    @property
    def max_attempts(self) -> int:
        return self.retries + 1

    @property
    def retries(self) -> int:
        return scheduled_retries(self.schedule, self.event.max_retries)

    def next_attempt(self, retry: Retry, jitter: float) -> Retry:
        """The retry at the time of the schedule. A handler that names a delay gets it."""
        if retry.delay is not None:
            return retry
        return replace(retry, delay=scheduled_delay(self.schedule, self.attempt, jitter))


class HandlerLane(EventLane):
    """Settles a failed event by the schedule of its handler, if the handler has one."""

    def __init__(self, handlers: EventHandlers) -> None:
        self.handlers = handlers

    async def settle(self, tx: Tx, settlements: Sequence[Settlement[Outcome | Retry | Snooze]]) -> set[UUID]:
        """Settle, and give an event that failed for the first time the retries of its schedule."""
        settlements = [*map(self._apply_schedule, settlements)]
        scheduled = [item for settlement in settlements if isinstance(item := settlement.item, ScheduledEvent)]
        if raised := [item for item in scheduled if item.retries != item.event.max_retries]:
            await set_scheduled_retries(tx, self.fences(raised), [item.retries for item in raised])
        return await super().settle(tx, settlements)

    def _apply_schedule(self, settlement: Settlement[Outcome | Retry | Snooze]) -> Settlement[Outcome | Retry | Snooze]:
        item, outcome = settlement.item, settlement.outcome
        if not (isinstance(outcome, Retry) and isinstance(item, ClaimedEvent)):
            return settlement
        schedule = self.handlers.retry_schedule(item)
        if schedule is None:
            return settlement
        event = ScheduledEvent(item, schedule)
        return Settlement(event, event.next_attempt(outcome, random.random()))  # noqa: S311 jitter, not a secret
