"""Push: the hub sends a service's events to the address it gave, and remembers how each receiver does."""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from pabal.core.actor import HUB_ACTOR
from pabal.core.errors import DecryptionError, PabalError
from pabal.core.ids import new_id
from pabal.core.log import get_logger
from pabal.db.channels import Channel
from pabal.db.pool import Database
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.events.circuit_breaker import CLOSED_BREAKER, CircuitBreaker
from pabal.events.lane import LANE, ClaimedEvent
from pabal.events.push_targets import PushSlot, PushTarget, find_test_target, list_push_slots, list_push_targets
from pabal.events.subscriptions import (
    Subscription,
    disable_subscription,
    previous_webhook_secret_location,
    webhook_secret_location,
)
from pabal.keys.envelope import decrypt_envelope
from pabal.keys.keyring import KeyRing
from pabal.queue.lane import Lane
from pabal.queue.outcome import Done, Outcome, Retry, Snooze
from pabal.queue.worker import ClaimFilter, WorkerConfig

Q = load_queries(__file__)
log = get_logger()

UNREADABLE_SECRET_DELAY = timedelta(minutes=1)
PUSH_CONCURRENCY = WorkerConfig().concurrency


class PushBody(msgspec.Struct, frozen=True):
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
class PushRequest:
    """What is sent, where to, and signed with what. `message` is what the receiver deduplicates by."""

    url: str = field(repr=False)
    secrets: Sequence[str] = field(repr=False)
    message_id: str
    at: datetime
    body: bytes = field(repr=False)
    timeout: timedelta
    traceparent: str | None


@dataclass(frozen=True, slots=True)
class ReceiverGone:
    """The receiver wants nothing more, now or ever."""

    reason: str


SendPush = Callable[[PushRequest], Awaitable[Outcome | ReceiverGone]]
"""Sends, and reads the answer. How is none of our business."""


@dataclass(frozen=True, slots=True)
class PushDelivery:
    """An event and where it goes."""

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
        return self.event.max_attempts


class PushLane(Lane[PushDelivery]):
    """The event lane, as far as it is pushed: a claim is for a turn, and each event comes with its address.

    Both in one transaction: should the address not be found out, nothing was claimed and no attempt is spent.
    """

    name = LANE.name
    channel = LANE.channel
    capabilities = LANE.capabilities
    q = LANE.q

    async def claim(self, tx: Tx, limit: int, hold: timedelta, holder: str, **claim_filter: Any) -> list[PushDelivery]:
        turn: PushSlot = claim_filter["turn"]
        async with tx.atomic():
            most = 1 if turn.is_probe else limit
            events = await LANE.claim(tx, most, hold, holder, service=turn.service, patterns=turn.patterns)
            if not events:
                return []
            to = {
                each.event_type: each
                for each in await list_push_targets(tx, turn, [each.event_type for each in events])
            }
            if astray := [event for event in events if event.event_type not in to]:
                await LANE.release(tx, astray)  # paused this moment, or another process has the probe
        return [PushDelivery(event, to[event.event_type]) for event in events if event.event_type in to]

    async def settle_done(self, tx: Tx, items: Sequence[PushDelivery]) -> list[UUID]:
        return await LANE.settle_done(tx, [item.event for item in items])


class Pusher:
    """Says whose turn it is, sends, and remembers how each receiver does."""

    def __init__(self, db: Database, keys: KeyRing, send: SendPush, concurrency: int = PUSH_CONCURRENCY) -> None:
        self._db = db
        self._keys = keys
        self._send = send
        self._concurrency = concurrency
        self._in_flight: Counter[UUID] = Counter()
        self._failing_ids: set[UUID] = set()

    async def schedule(self) -> list[ClaimFilter]:
        """Who has something due and somewhere to send it, the idlest first, and how many hands each may have."""
        async with self._db.autocommit() as tx:
            found = await list_push_slots(tx)
        free = self._concurrency - self._in_flight.total()
        rota: list[ClaimFilter] = []
        for turn in sorted(found, key=lambda each: self._in_flight[each.subscription_id]):
            most = min(1, free) if turn.is_probe else push_capacity(free, self._in_flight[turn.subscription_id])
            free -= most
            rota.append({"turn": turn, "most": most})
        return rota

    async def handle(self, delivery: PushDelivery) -> Outcome:
        self._in_flight[delivery.target.id] += 1
        try:
            return await self._push(delivery)
        finally:
            self._in_flight[delivery.target.id] -= 1

    async def send_test(self, subscription: Subscription) -> Outcome | ReceiverGone:
        """Send a test event at once, past the queue, and say what came back; nothing follows from it."""
        async with self._db.autocommit() as tx:
            to = await find_test_target(tx, subscription)
        row, told = new_id(), {"subscription": str(to.id)}
        event = PushBody(row, row, to.event_type, HUB_ACTOR.name, to.service_name, told, 5, 0, 0, to.now)
        return await self._send(self._build_request(event, to))

    async def _push(self, delivery: PushDelivery) -> Outcome:
        to = delivery.target
        try:
            post = self._build_request(push_body(delivery.event), to)
        except DecryptionError as error:  # our fault, and the receiver's event is not to die of it
            log.error("secret unreadable", subscription=str(to.id), error=str(error))
            return Snooze(str(error), UNREADABLE_SECRET_DELAY)
        outcome = await self._send(post)
        if isinstance(outcome, ReceiverGone):
            await self._disable_subscription(to, outcome.reason)
            return Snooze(outcome.reason, timedelta())
        try:
            await self._record_outcome(to, outcome)
        except PabalError as error:  # it was sent or not, whatever we can write down of the receiver
            log.warning("breaker unwritten", subscription=str(to.id), error=str(error))
        return outcome

    def _build_request(self, event: PushBody, target: PushTarget) -> PushRequest:
        secrets = [decrypt_envelope(self._keys, target.secret, webhook_secret_location(target.id))]
        if target.previous_secret is not None:
            secrets.append(
                decrypt_envelope(self._keys, target.previous_secret, previous_webhook_secret_location(target.id))
            )
        return PushRequest(
            url=target.url,
            secrets=secrets,
            message_id=str(event.origin_id),
            at=target.now,
            body=msgspec.json.encode(event),
            timeout=timedelta(seconds=target.timeout_seconds),
            traceparent=event.traceparent,
        )

    async def _disable_subscription(self, target: PushTarget, reason: str) -> None:
        async with self._db.transaction() as tx:
            first = await disable_subscription(tx, target.id, target.service_name, target.url, reason, HUB_ACTOR)
        if first:
            log.warning("subscription disabled", subscription=str(target.id), service=target.service_name, error=reason)

    async def _record_outcome(self, target: PushTarget, outcome: Outcome) -> None:
        """Write down a failure, or the first success after failures; most pushes write nothing."""
        match outcome:
            case Retry():
                self._failing_ids.add(target.id)
                await self._update_breaker(target, failed=True)
            case Done() if target.failures or target.is_probe or target.id in self._failing_ids:
                self._failing_ids.discard(target.id)
                await self._update_breaker(target, failed=False)
            case _:
                return

    async def _update_breaker(self, target: PushTarget, *, failed: bool) -> None:
        async with self._db.transaction() as tx:
            stands = await tx.maybe(
                BreakerRow, Q.lock_breaker, id=target.id, service=target.service_name, url=target.url
            )
            if stands is None:
                self._failing_ids.discard(target.id)
                return
            was = CircuitBreaker(stands.failures, stands.open_until)
            now = was.after_failure(stands.now, is_probe=target.is_probe) if failed else CLOSED_BREAKER
            if now == was:
                return
            said = {"failures": now.failures, "open_until": now.open_until}
            await tx.run(Q.update_breaker, id=target.id, service=target.service_name, **said)
            if was.open_until is not None and now.open_until is None:
                tx.notify(Channel.EVENTS)  # what waited meanwhile
        if now.open_until is not None or was.open_until is not None:
            log.warning("breaker turned", subscription=str(target.id), service=target.service_name, **said)


@dataclass(frozen=True, slots=True)
class BreakerRow:
    """A breaker as the row has it."""

    failures: int
    open_until: datetime | None
    now: datetime


def push_capacity(free: int, in_flight: int) -> int:
    """How many more hands a receiver may have: all in all a third of what then stays free, and one if it has none.

    Whoever is slow takes ever less the fewer are left: of a hundred four that never answer leave 33, and ten leave 7.
    """
    return max((free - 3 * in_flight) // 4, 0 if in_flight else min(1, free), 0)


def push_body(event: ClaimedEvent) -> PushBody:
    return PushBody(**{name: getattr(event, name) for name in PushBody.__struct_fields__})
