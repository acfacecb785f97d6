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
from pabal.events.read import as_like
from pabal.events.subscriptions import Subscription

Q = beside(__file__)

SLACK = timedelta(seconds=15)
"""What a probe may take besides waiting for its answer: to be sent, and written down."""


@dataclass(frozen=True, slots=True)
class Live:
    """A subscription that pushes may go to, what it would take of what is due, and how its breaker stands."""

    id: UUID
    service_name: str
    event_types: Sequence[str]
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
    """A subscription's place on the rota. One that is probing is to be asked with one event."""

    service: str
    subscription: UUID
    event_types: Sequence[str]
    probing: bool = False

    @property
    def patterns(self) -> list[str]:
        return [as_like(each) for each in self.event_types]


async def turns(tx: Tx) -> list[Turn]:
    """Whose turn it is: everybody who has something due and somewhere to send it."""
    due = await LANE.rota(tx)
    return turns_of(await tx.all(Live, Q.live, services=due)) if due else []


async def addresses(tx: Tx, turn: Turn, event_types: Sequence[str]) -> list[Address]:
    if not turn.probing:
        return await tx.all(Address, Q.addresses, service=turn.service, event_types=[*{*event_types}])
    asked = {"id": turn.subscription, "service": turn.service, "event_type": event_types[0], "slack": SLACK}
    return await tx.all(Address, Q.probe, **asked)


async def address_of(tx: Tx, subscription: Subscription) -> Address:
    """Where a test goes; to a subscription in whatever state."""
    to = await tx.maybe(Address, Q.address, id=subscription.id, service=subscription.service_name)
    if to is None:
        raise Conflict("only a subscription with an address can be tested")
    return to


def turns_of(live: Sequence[Live]) -> list[Turn]:
    """A turn for each. A type that several want is the oldest's; who is to be asked may be asked with any of theirs."""
    taken: set[tuple[str, str]] = set()
    found: list[Turn] = []
    for each in live:
        standing, types = each.standing, {(each.service_name, event_type) for event_type in each.event_types}
        if standing is Standing.CLOSED:
            types, taken = types - taken, taken | types
        if types and standing is not Standing.OPEN:
            mine = sorted(event_type for _, event_type in types)
            found.append(Turn(each.service_name, each.id, mine, probing=standing is Standing.HALF_OPEN))
    return found
