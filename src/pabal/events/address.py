"""Where pushes go: asked of the table at every look, and once more after the claim.

A subscription that was paused, changed or removed is therefore treated so from that moment, in all processes; only what
is on its way arrives.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from pabal.core.errors import Conflict
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.events.breaker import Breaker, Standing
from pabal.events.lane import LANE
from pabal.events.subscriptions import Subscription

Q = beside(__file__)

SLACK = timedelta(seconds=15)
"""What a probe may take besides waiting for its answer: to be sent, and written down."""


@dataclass(frozen=True, slots=True)
class Live:
    """A subscription that pushes may go to, and how its breaker stands."""

    id: UUID
    service_name: str
    patterns: Sequence[str]
    failures: int
    open_until: datetime | None
    now: datetime

    @property
    def standing(self) -> Standing:
        return Breaker(self.failures, self.open_until).standing(self.now)


@dataclass(frozen=True, slots=True)
class Address:
    """Where events of a type go. `now` is the database's time when it was asked."""

    event_type: str
    id: UUID
    service_name: str
    url: str = field(repr=False)
    secret: str = field(repr=False)
    previous_secret: str | None = field(repr=False)
    timeout_seconds: int
    failures: int
    probing: bool
    now: datetime


@dataclass(frozen=True, slots=True)
class Turn:
    """A service's place on the rota. `probe` is the one subscription this turn is to ask, and then with one event."""

    service: str
    patterns: Sequence[str]
    probe: UUID | None = None


async def turns(tx: Tx) -> list[Turn]:
    """Whose turn it is: everybody who has something due and somewhere to send it."""
    due = await LANE.rota(tx)
    return turns_of(await tx.all(Live, Q.live, services=due)) if due else []


async def addresses(tx: Tx, turn: Turn, event_types: Sequence[str]) -> list[Address]:
    if turn.probe is None:
        return await tx.all(Address, Q.addresses, service=turn.service, event_types=[*{*event_types}])
    asked = {"id": turn.probe, "service": turn.service, "event_type": event_types[0], "slack": SLACK}
    return await tx.all(Address, Q.probe, **asked)


async def address_of(tx: Tx, subscription: Subscription) -> Address:
    """Where a test goes; to a subscription in whatever state."""
    to = await tx.maybe(Address, Q.address, id=subscription.id, service=subscription.service_name)
    if to is None:
        raise Conflict("only a subscription with an address can be tested")
    return to


def turns_of(live: Sequence[Live]) -> list[Turn]:
    """One turn for all of a service's subscriptions that take everything, and one for each that is to be asked."""
    taking: dict[str, list[str]] = {}
    for each in live:
        if each.standing is Standing.CLOSED:
            taking.setdefault(each.service_name, []).extend(each.patterns)
    probes = [Turn(each.service_name, each.patterns, each.id) for each in live if each.standing is Standing.HALF_OPEN]
    return [*(Turn(service, patterns) for service, patterns in taking.items()), *probes]
