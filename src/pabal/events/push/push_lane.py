"""The event lane for pushes: claims events together with the target each is sent to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.events.consume.lane import LANE, ClaimedEvent, EventClaimFilter
from pabal.events.push.retry_schedule import scheduled_retries
from pabal.events.push.targets import PushSlot, PushTarget, acquire_probe, find_push_targets, lock_probe
from pabal.queue.lane import ClaimedRow, ClaimedRows, ClaimRequest, Lane, Settlement
from pabal.queue.outcome import Outcome, Retry, Snooze

Q = load_queries(__file__)

PROBE_CANDIDATES = 20
"""How many events a probe is chosen from if the first one has failed before."""


@dataclass(frozen=True, slots=True)
class PushDelivery:
    """An event and the target it is sent to."""

    event: ClaimedEvent
    target: PushTarget

    @property
    def id(self) -> UUID:
        return self.event.id

    @property
    def lease(self) -> UUID:
        return self.event.lease

    @property
    def attempt(self) -> int:
        return self.event.attempt

    @property
    def max_attempts(self) -> int:
        return self.retries + 1

    @property
    def retries(self) -> int:
        return scheduled_retries(self.target.retry_schedule, self.event.max_retries)


class PushLane(Lane[PushDelivery, PushSlot]):
    """The event lane for pushes: a claim is for one slot, and each event comes with its target.

    Both in one transaction: if finding the target fails, nothing is claimed and no attempt is spent.
    """

    name = LANE.name
    channel = LANE.channel
    capabilities = LANE.capabilities
    q = LANE.q

    async def claim(self, tx: Tx, limit: int, hold: timedelta, holder: str, slot: PushSlot, /) -> list[PushDelivery]:
        return (await self.claim_many(tx, [ClaimRequest(slot, limit)], limit, hold, holder)).items

    async def claim_many(
        self, tx: Tx, requests: Sequence[ClaimRequest[PushSlot]], limit: int, hold: timedelta, holder: str, /
    ) -> ClaimedRows[PushDelivery]:
        """Claim for all slots in one statement, except for probes."""
        parts = [index for index, request in enumerate(requests) if not request.claim_filter.is_probe]
        has_more = [False] * len(requests)
        deliveries: list[PushDelivery] = []
        async with tx.atomic():
            if parts:
                claims = [
                    ClaimRequest(requests[index].claim_filter.event_filter, requests[index].limit) for index in parts
                ]
                claimed = await LANE.claim_many(tx, claims, limit, hold, holder)
                for index, is_full in zip(parts, claimed.has_more, strict=True):
                    has_more[index] = is_full
                deliveries = await self._match_targets(tx, claimed.items)
            for request in requests:
                if request.claim_filter.is_probe and len(deliveries) < limit:
                    deliveries += await self._claim_probe(tx, hold, holder, request.claim_filter)
            retried = [item for item in deliveries if item.event.retry_count]
            await self._set_scheduled_retries(tx, retried)  # a lost lease has settled nothing
        return ClaimedRows(deliveries, has_more)

    async def _match_targets(self, tx: Tx, events: Sequence[ClaimedEvent]) -> list[PushDelivery]:
        if not events:
            return []
        targets = await find_push_targets(tx, events)
        matched = [(event, targets.get((event.target_service, event.event_type))) for event in events]
        if without_target := [event for event, target in matched if target is None]:
            await LANE.release(tx, without_target)  # the subscription was paused meanwhile
        return [PushDelivery(event, target) for event, target in matched if target is not None]

    async def _claim_probe(self, tx: Tx, hold: timedelta, holder: str, slot: PushSlot) -> list[PushDelivery]:
        if not await lock_probe(tx, slot):
            return []
        events = await LANE.claim(tx, 1, hold, holder, slot.event_filter)
        if events and events[0].retry_count:
            events = await self._choose_probe(tx, events[0], hold, holder, slot.event_filter)
        if not events:
            return []
        target = await acquire_probe(tx, slot, events[0])
        if target is None:
            await LANE.release(tx, events)
            return []
        return [PushDelivery(events[0], target)]

    async def _choose_probe(
        self, tx: Tx, first: ClaimedEvent, hold: timedelta, holder: str, claim_filter: EventClaimFilter
    ) -> list[ClaimedEvent]:
        """Choose the event with the fewest attempts, so that no single event decides about the receiver."""
        others = await LANE.claim(tx, PROBE_CANDIDATES - 1, hold, holder, claim_filter)
        probe = min((first, *others), key=lambda event: event.retry_count)
        await LANE.release(tx, [event for event in (first, *others) if event is not probe])
        return [probe]

    def topic(self, item: ClaimedRow) -> str:
        return item.event.target_service if isinstance(item, PushDelivery) else ""

    async def settle_done(self, tx: Tx, items: Sequence[PushDelivery]) -> list[UUID]:
        return await LANE.settle_done(tx, [item.event for item in items])

    async def settle(self, tx: Tx, settlements: Sequence[Settlement[Outcome | Retry | Snooze]]) -> set[UUID]:
        """Settle, and give an event that failed for the first time the retries of its schedule."""
        failed = [
            item
            for settlement in settlements
            if isinstance(settlement.outcome, Retry) and isinstance(item := settlement.item, PushDelivery)
        ]
        await self._set_scheduled_retries(tx, failed)
        return await super().settle(tx, settlements)

    async def _set_scheduled_retries(self, tx: Tx, items: Sequence[PushDelivery]) -> None:
        changed = [item for item in items if item.retries != item.event.max_retries]
        if changed:
            await set_scheduled_retries(tx, self.fences(changed), [item.retries for item in changed])


async def set_scheduled_retries(tx: Tx, fences: Mapping[str, Sequence[UUID]], retries: Sequence[int]) -> None:
    """Give events as many retries as their schedule has. The publisher's value is kept for a replay."""
    await tx.run(Q.schedule_retries, **fences, retries=retries)
