"""Push: the hub sends a service's events to the address it gave, and remembers how each receiver does."""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from pabal.core.actor import HUB
from pabal.core.errors import PabalError, Unreadable
from pabal.core.ids import new_id
from pabal.core.log import get_logger
from pabal.db.bells import Bell
from pabal.db.pool import Database
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.events import subscriptions
from pabal.events.address import Address, Turn, address_of, addresses, turns
from pabal.events.breaker import CLOSED, Breaker
from pabal.events.lane import LANE, HeldEvent
from pabal.events.subscriptions import Subscription
from pabal.keys.envelope import unseal
from pabal.keys.ring import Ring
from pabal.queue.lane import Lane
from pabal.queue.outcome import Done, Outcome, Retry, Snooze
from pabal.queue.worker import Pace, Whom

Q = beside(__file__)
log = get_logger()

LATER = timedelta(minutes=1)
HANDS = Pace().hands


class Pushed(msgspec.Struct, frozen=True):
    """An event as its receiver gets it: as if pulled, without a receipt."""

    id: UUID
    origin_id: UUID
    event_type: str
    source_service: str
    target_service: str
    payload: dict[str, Any]
    priority: int
    retry_count: int
    max_retries: int
    created_at: datetime
    ordering_key: str | None = None
    correlation_id: str | None = None
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class Post:
    """What is sent, where to, and signed with what. `message` is what the receiver deduplicates by."""

    url: str = field(repr=False)
    secrets: Sequence[str] = field(repr=False)
    message: str
    at: datetime
    body: bytes = field(repr=False)
    within: timedelta
    traceparent: str | None


@dataclass(frozen=True, slots=True)
class Gone:
    """The receiver wants nothing more, now or ever."""

    why: str


Send = Callable[[Post], Awaitable[Outcome | Gone]]
"""Sends, and reads the answer. How is none of our business."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """An event and where it goes."""

    event: HeldEvent
    to: Address

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
    def allowed(self) -> int:
        return self.event.allowed


class Pushes(Lane[Parcel]):
    """The event lane, as far as it is pushed: a claim is for a turn, and each event comes with its address.

    Both in one transaction: should the address not be found out, nothing was claimed and no attempt is spent.
    """

    name = LANE.name
    bell = LANE.bell
    can = LANE.can
    q = LANE.q

    async def claim(self, tx: Tx, limit: int, hold: timedelta, holder: str, **whom: Any) -> list[Parcel]:
        turn: Turn = whom["turn"]
        async with tx.together():
            most = 1 if turn.probing else limit
            events = await LANE.claim(tx, most, hold, holder, service=turn.service, patterns=turn.patterns)
            if not events:
                return []
            to = {each.event_type: each for each in await addresses(tx, turn, [each.event_type for each in events])}
            if astray := [event for event in events if event.event_type not in to]:
                await LANE.release(tx, astray)  # paused this moment, or another process has the probe
        return [Parcel(event, to[event.event_type]) for event in events if event.event_type in to]

    async def settle_done(self, tx: Tx, items: Sequence[Parcel]) -> list[UUID]:
        return await LANE.settle_done(tx, [item.event for item in items])


class Pusher:
    """Says whose turn it is, sends, and remembers how each receiver does."""

    def __init__(self, db: Database, keys: Ring, send: Send, hands: int = HANDS) -> None:
        self._db = db
        self._keys = keys
        self._send = send
        self._hands = hands
        self._under_way: Counter[UUID] = Counter()
        self._failing: set[UUID] = set()

    async def rota(self) -> list[Whom]:
        """Who has something due and somewhere to send it, the idlest first, and how many hands each may have."""
        async with self._db.autocommit() as tx:
            found = await turns(tx)
        free = self._hands - self._under_way.total()
        rota: list[Whom] = []
        for turn in sorted(found, key=lambda each: self._under_way[each.subscription]):
            most = min(1, free) if turn.probing else room(free, self._under_way[turn.subscription])
            free -= most
            rota.append({"turn": turn, "most": most})
        return rota

    async def handle(self, parcel: Parcel) -> Outcome:
        self._under_way[parcel.to.id] += 1
        try:
            return await self._push(parcel)
        finally:
            self._under_way[parcel.to.id] -= 1

    async def test(self, subscription: Subscription) -> Outcome | Gone:
        """Send a test event at once, past the queue, and say what came back; nothing follows from it."""
        async with self._db.autocommit() as tx:
            to = await address_of(tx, subscription)
        row, told = new_id(), {"subscription": str(to.id)}
        event = Pushed(row, row, to.event_type, HUB.name, to.service_name, told, 5, 0, 0, to.now)
        return await self._send(self._post(event, to))

    async def _push(self, parcel: Parcel) -> Outcome:
        to = parcel.to
        try:
            post = self._post(pushed(parcel.event), to)
        except Unreadable as error:  # our fault, and the receiver's event is not to die of it
            log.error("secret unreadable", subscription=str(to.id), why=str(error))
            return Snooze(str(error), LATER)
        outcome = await self._send(post)
        if isinstance(outcome, Gone):
            await self._give_up(to, outcome.why)
            return Snooze(outcome.why, timedelta())
        try:
            await self._remember(to, outcome)
        except PabalError as error:  # it was sent or not, whatever we can write down of the receiver
            log.warning("breaker unwritten", subscription=str(to.id), why=str(error))
        return outcome

    def _post(self, event: Pushed, to: Address) -> Post:
        secrets = [unseal(self._keys, to.secret, subscriptions.secret_place(to.id))]
        if to.previous_secret is not None:
            secrets.append(unseal(self._keys, to.previous_secret, subscriptions.previous_place(to.id)))
        return Post(
            url=to.url,
            secrets=secrets,
            message=str(event.origin_id),
            at=to.now,
            body=msgspec.json.encode(event),
            within=timedelta(seconds=to.timeout_seconds),
            traceparent=event.traceparent,
        )

    async def _give_up(self, to: Address, why: str) -> None:
        async with self._db.transaction() as tx:
            first = await subscriptions.disable(tx, to.id, to.service_name, to.url, why, HUB)
        if first:
            log.warning("subscription disabled", subscription=str(to.id), service=to.service_name, why=why)

    async def _remember(self, to: Address, outcome: Outcome) -> None:
        """Write down a failure, or the first success after failures; most pushes write nothing."""
        match outcome:
            case Retry():
                self._failing.add(to.id)
                await self._turn(to, failed=True)
            case Done() if to.failures or to.probing or to.id in self._failing:
                self._failing.discard(to.id)
                await self._turn(to, failed=False)
            case _:
                return

    async def _turn(self, to: Address, *, failed: bool) -> None:
        async with self._db.transaction() as tx:
            stands = await tx.maybe(Stands, Q.breaker, id=to.id, service=to.service_name, url=to.url)
            if stands is None:
                self._failing.discard(to.id)
                return
            was = Breaker(stands.failures, stands.open_until)
            now = was.failed(stands.now, probing=to.probing) if failed else CLOSED
            if now == was:
                return
            said = {"failures": now.failures, "open_until": now.open_until}
            await tx.run(Q.set_breaker, id=to.id, service=to.service_name, **said)
            if was.open_until is not None and now.open_until is None:
                tx.ring(Bell.EVENTS)  # what waited meanwhile
        if now.open_until is not None or was.open_until is not None:
            log.warning("breaker turned", subscription=str(to.id), service=to.service_name, **said)


@dataclass(frozen=True, slots=True)
class Stands:
    """A breaker as the row has it."""

    failures: int
    open_until: datetime | None
    now: datetime


def room(free: int, own: int) -> int:
    """How many more hands a receiver may have: all in all a third of what then stays free, and one if it has none.

    Whoever is slow takes ever less the fewer are left: of a hundred four that never answer leave 33, and ten leave 7.
    """
    return max((free - 3 * own) // 4, 0 if own else min(1, free), 0)


def pushed(event: HeldEvent) -> Pushed:
    return Pushed(**{name: getattr(event, name) for name in Pushed.__struct_fields__})
