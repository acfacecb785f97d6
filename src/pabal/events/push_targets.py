"""Where pushes go: asked of the table at every look, and once more after the claim.

A subscription that was paused, changed or removed is therefore treated so from that moment, in all processes; only what
is on its way arrives.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from pabal.core.errors import Conflict
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.events.circuit_breaker import BreakerState, CircuitBreaker
from pabal.events.events import like_pattern
from pabal.events.lane import LANE
from pabal.events.subscriptions import Subscription

Q = load_queries(__file__)

PROBE_SLACK = timedelta(seconds=15)
"""What a probe may take besides waiting for its answer: to be sent, and written down."""


@dataclass(frozen=True, slots=True)
class ActivePushSubscription:
    """A subscription that pushes may go to, what it would take of what is due, and how its breaker stands."""

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
    """Where events of a type go. `now` is the database's time when it was asked."""

    event_type: str
    id: UUID
    service_name: str
    url: str = field(repr=False)
    secret: str = field(repr=False)
    previous_secret: str | None = field(repr=False)
    timeout_seconds: int
    failures: int
    is_probe: bool
    now: datetime


@dataclass(frozen=True, slots=True)
class PushSlot:
    """A subscription's place on the rota. One that is probing is to be asked with one event."""

    service: str
    subscription_id: UUID
    event_types: Sequence[str]
    is_probe: bool = False

    @property
    def patterns(self) -> list[str]:
        return [like_pattern(each) for each in self.event_types]


async def list_push_slots(tx: Tx) -> list[PushSlot]:
    """Whose turn it is: everybody who has something due and somewhere to send it."""
    due = await LANE.services_with_due_events(tx)
    return (
        assign_push_slots(await tx.all(ActivePushSubscription, Q.list_active_push_subscriptions, services=due))
        if due
        else []
    )


async def list_push_targets(tx: Tx, slot: PushSlot, event_types: Sequence[str]) -> list[PushTarget]:
    if not slot.is_probe:
        return await tx.all(PushTarget, Q.list_push_targets, service=slot.service, event_types=[*{*event_types}])
    asked = {"id": slot.subscription_id, "service": slot.service, "event_type": event_types[0], "slack": PROBE_SLACK}
    return await tx.all(PushTarget, Q.acquire_probe, **asked)


async def find_test_target(tx: Tx, subscription: Subscription) -> PushTarget:
    """Where a test goes; to a subscription in whatever state."""
    to = await tx.maybe(PushTarget, Q.find_test_target, id=subscription.id, service=subscription.service_name)
    if to is None:
        raise Conflict("only a subscription with an address can be tested")
    return to


def assign_push_slots(subscriptions: Sequence[ActivePushSubscription]) -> list[PushSlot]:
    """A turn for each. A type that several want is the oldest's; who is to be asked may be asked with any of theirs."""
    taken: set[tuple[str, str]] = set()
    found: list[PushSlot] = []
    for each in subscriptions:
        standing, types = each.breaker_state, {(each.service_name, event_type) for event_type in each.event_types}
        if standing is BreakerState.CLOSED:
            types, taken = types - taken, taken | types
        if types and standing is not BreakerState.OPEN:
            mine = sorted(event_type for _, event_type in types)
            found.append(PushSlot(each.service_name, each.id, mine, is_probe=standing is BreakerState.HALF_OPEN))
    return found
