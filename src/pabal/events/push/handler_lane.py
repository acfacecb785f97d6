"""The event lane for handlers with a retry schedule of their own."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from uuid import UUID

from pabal.db.tx import Tx
from pabal.events.consume.handlers import EventHandlers
from pabal.events.consume.lane import ClaimedEvent, EventClaimFilter, EventLane
from pabal.events.push.push_lane import set_scheduled_retries
from pabal.events.push.retry_schedule import scheduled_delay, scheduled_retries
from pabal.queue.lane import ClaimedRows, ClaimRequest, Settlement
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

    async def claim_many(
        self, tx: Tx, requests: Sequence[ClaimRequest[EventClaimFilter]], limit: int, hold: timedelta, holder: str, /
    ) -> ClaimedRows[ClaimedEvent]:
        """Claim, and give the events of a lost lease the retries of their schedule: it has settled nothing."""
        async with tx.atomic():
            claimed = await super().claim_many(tx, requests, limit, hold, holder)
            await self._set_scheduled_retries(
                tx,
                [
                    ScheduledEvent(event, schedule)
                    for event in claimed.items
                    if event.retry_count and (schedule := self.handlers.retry_schedule(event)) is not None
                ],
            )
        return claimed

    async def settle(self, tx: Tx, settlements: Sequence[Settlement[Outcome | Retry | Snooze]]) -> set[UUID]:
        """Settle, and give an event that failed for the first time the retries of its schedule."""
        settlements = [*map(self._apply_schedule, settlements)]
        scheduled = [item for settlement in settlements if isinstance(item := settlement.item, ScheduledEvent)]
        await self._set_scheduled_retries(tx, scheduled)
        return await super().settle(tx, settlements)

    async def _set_scheduled_retries(self, tx: Tx, items: Sequence[ScheduledEvent]) -> None:
        changed = [item for item in items if item.retries != item.event.max_retries]
        if changed:
            await set_scheduled_retries(tx, self.fences(changed), [item.retries for item in changed])

    def _apply_schedule(self, settlement: Settlement[Outcome | Retry | Snooze]) -> Settlement[Outcome | Retry | Snooze]:
        item, outcome = settlement.item, settlement.outcome
        if not (isinstance(outcome, Retry) and isinstance(item, ClaimedEvent)):
            return settlement
        schedule = self.handlers.retry_schedule(item)
        if schedule is None:
            return settlement
        event = ScheduledEvent(item, schedule)
        return Settlement(event, event.next_attempt(outcome, random.random()))  # noqa: S311 jitter, not a secret
