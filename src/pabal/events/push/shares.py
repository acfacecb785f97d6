"""Shares of the push worker's slots: first per service, then per subscription of a service."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from uuid import UUID

from pabal.events.consume.fair_claims import slot_capacity
from pabal.events.push.targets import PushSlot
from pabal.queue.worker import ScheduledClaim

FEW_SERVICES = 17
"""Halving a hundred slots again and again leaves one for so many services."""


class PushesInFlight:
    """Counts the pushes in flight, per service and per subscription."""

    def __init__(self) -> None:
        self.by_service: Counter[str] = Counter()
        self.by_subscription: Counter[UUID] = Counter()

    def add(self, service: str, subscription_id: UUID, number: int) -> None:
        self.by_service[service] += number
        self.by_subscription[subscription_id] += number

    @property
    def total(self) -> int:
        return self.by_service.total()


def share_push_slots(
    slots: Sequence[PushSlot], in_flight: PushesInFlight, concurrency: int
) -> list[ScheduledClaim[PushSlot]]:
    """Divide the free slots: the least busy service first and, within it, the least busy subscription first.

    Many services get equal shares, so that a round has a slot for each of them.
    """
    by_service: defaultdict[str, list[PushSlot]] = defaultdict(list)
    for slot in slots:
        by_service[slot.service].append(slot)
    free = concurrency - in_flight.total
    max_share = free if len(by_service) <= FEW_SERVICES else max(free // len(by_service), 1)
    claims: list[ScheduledClaim[PushSlot]] = []
    for service in sorted(by_service, key=lambda name: in_flight.by_service[name]):
        service_free = min(slot_capacity(free, in_flight.by_service[service]), max_share)
        for slot in sorted(by_service[service], key=lambda slot: in_flight.by_subscription[slot.subscription_id]):
            capacity = slot_capacity(service_free, in_flight.by_subscription[slot.subscription_id])
            capacity = min(1, capacity) if slot.is_probe else capacity
            free -= capacity
            service_free -= capacity
            claims.append(ScheduledClaim(slot, capacity))
    return claims
