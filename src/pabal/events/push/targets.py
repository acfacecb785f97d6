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
from pabal.events.events import like_patterns
from pabal.events.lane import LANE
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
    def patterns(self) -> list[str]:
        return like_patterns(self.event_types)


async def list_push_slots(tx: Tx) -> list[PushSlot]:
    """List the subscriptions with due events that may be pushed now."""
    services = await LANE.services_with_due_events(tx)
    if not services:
        return []
    return assign_push_slots(await tx.all(ActivePushSubscription, Q.list_active_push_subscriptions, services=services))


async def list_push_targets(tx: Tx, slot: PushSlot, event_types: Sequence[str]) -> list[PushTarget]:
    if not slot.is_probe:
        return await tx.all(PushTarget, Q.list_push_targets, service=slot.service, event_types=[*{*event_types}])
    return await tx.all(
        PushTarget,
        Q.acquire_probe,
        id=slot.subscription_id,
        service=slot.service,
        event_type=event_types[0],
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
