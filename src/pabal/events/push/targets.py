"""Push targets: read from the table before each claim and again after it.

So a pause, a change or a removal of a subscription applies at once in all processes; only pushes already sent arrive.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from pabal.core.errors import Conflict
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.events.consume.lane import ClaimedEvent, EventClaimFilter
from pabal.events.events import like_patterns
from pabal.events.push.circuit_breaker import BreakerState, CircuitBreaker
from pabal.events.subscriptions import OnBlocked, Subscription

Q = load_queries(__file__)

PROBE_SLACK = timedelta(seconds=15)
"""Time for a probe to be sent and recorded, besides its timeout."""


@dataclass(frozen=True, slots=True)
class ActivePushSubscription:
    """A subscription that is neither paused nor disabled, the due event types it matches, and its breaker."""

    id: UUID
    service_name: str
    event_types: Sequence[str]
    failures: int
    open_until: datetime | None
    now: datetime

    @property
    def breaker_state(self) -> BreakerState:
        return CircuitBreaker(self.failures, self.open_until).state(self.now)


@dataclass(frozen=True, slots=True)
class PushTarget:
    """Where to push events of a type. `now` is the database's time."""

    event_type: str
    id: UUID
    service_name: str
    url: str = field(repr=False)
    secret: str = field(repr=False)
    previous_secret: str | None = field(repr=False)
    timeout_seconds: int
    failures: int
    retry_schedule: Sequence[int] | None
    on_blocked: OnBlocked
    is_probe: bool
    now: datetime


@dataclass(frozen=True, slots=True)
class PushSlot:
    """What one claim takes: events of these types for one subscription. A probe takes one event."""

    service: str
    subscription_id: UUID
    event_types: Sequence[str]
    is_probe: bool = False

    @property
    def event_filter(self) -> EventClaimFilter:
        return EventClaimFilter(self.service, like_patterns(self.event_types))


async def list_active_push_subscriptions(tx: Tx, services: Sequence[str]) -> list[ActivePushSubscription]:
    """List the subscriptions of these services that are neither paused nor disabled."""
    return await tx.all(ActivePushSubscription, Q.list_active_push_subscriptions, services=services)


async def find_push_targets(tx: Tx, events: Sequence[ClaimedEvent]) -> dict[tuple[str, str], PushTarget]:
    """Find the targets of these events, by service and event type."""
    keys = [*{(event.target_service, event.event_type) for event in events}]
    targets = await tx.all(
        PushTarget,
        Q.list_push_targets,
        services=[service for service, _ in keys],
        event_types=[event_type for _, event_type in keys],
    )
    return {(target.service_name, target.event_type): target for target in targets}


async def lock_probe(tx: Tx, slot: PushSlot) -> bool:
    """Lock the subscription of a probe until the transaction ends; return False if another transaction holds it."""
    return await tx.value(Q.lock_probe, id=slot.subscription_id, service=slot.service) is not None


async def acquire_probe(tx: Tx, slot: PushSlot, event: ClaimedEvent) -> PushTarget | None:
    """Acquire the probe of a subscription; None if another process has it or the subscription was paused."""
    return await tx.maybe(
        PushTarget,
        Q.acquire_probe,
        id=slot.subscription_id,
        service=slot.service,
        event_type=event.event_type,
        slack=PROBE_SLACK,
    )


async def find_test_target(tx: Tx, subscription: Subscription) -> PushTarget:
    """Find the target of a test push, also if the subscription is paused or disabled."""
    target = await tx.maybe(PushTarget, Q.find_test_target, id=subscription.id, service=subscription.service_name)
    if target is None:
        raise Conflict("Only a push subscription can be tested")
    return target


def assign_push_slots(subscriptions: Sequence[ActivePushSubscription]) -> list[PushSlot]:
    """Assign due event types to subscriptions, which are sorted by age.

    If several match a type, the oldest with a closed breaker gets it. A probe may use any type of its subscription.
    """
    assigned: set[tuple[str, str]] = set()
    slots: list[PushSlot] = []
    for subscription in subscriptions:
        state = subscription.breaker_state
        types = {(subscription.service_name, event_type) for event_type in subscription.event_types}
        if state is BreakerState.CLOSED:
            types, assigned = types - assigned, assigned | types
        if types and state is not BreakerState.OPEN:
            event_types = sorted(event_type for _, event_type in types)
            is_probe = state is BreakerState.HALF_OPEN
            slots.append(PushSlot(subscription.service_name, subscription.id, event_types, is_probe=is_probe))
    return slots
