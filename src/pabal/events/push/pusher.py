"""Push: send the events of a service to its URL, with a circuit breaker for each subscription."""

import random
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Protocol, assert_never
from uuid import UUID

import msgspec

from pabal.core.actor import HUB_ACTOR
from pabal.core.errors import DecryptionError, PabalError
from pabal.core.ids import new_id
from pabal.core.log import get_logger
from pabal.db.doorbell.channels import Channel
from pabal.db.pool import Database
from pabal.db.queries import load_queries
from pabal.db.stored_json import raw_json
from pabal.events.push.circuit_breaker import CLOSED_BREAKER, CircuitBreaker
from pabal.events.push.due_services import DueServices
from pabal.events.push.push_lane import PushDelivery
from pabal.events.push.retry_schedule import (
    limit_blocked_delay,
    scheduled_delay,
)
from pabal.events.push.shares import PushesInFlight, share_push_slots
from pabal.events.push.targets import (
    PushSlot,
    PushTarget,
    assign_push_slots,
    find_test_target,
    list_active_push_subscriptions,
)
from pabal.events.subscriptions import (
    Subscription,
    disable_subscription,
    previous_webhook_secret_location,
    webhook_secret_location,
)
from pabal.keys.envelope import decrypt_envelope
from pabal.keys.keyring import KeyRing
from pabal.queue.outcome import Dead, Done, Outcome, Retry, Snooze, Unsent, UnsentScope
from pabal.queue.worker import ScheduledClaim, WorkerConfig

Q = load_queries(__file__)
log = get_logger()

UNREADABLE_SECRET_DELAY = timedelta(minutes=1)
HUB_FAULT_DELAY = timedelta(seconds=10)
PUSH_CONCURRENCY = WorkerConfig().concurrency


class PushBody(msgspec.Struct, frozen=True):
    """The JSON body of a push: the fields of a pulled event, without a receipt."""

    id: UUID
    origin_id: UUID
    event_type: str
    source_service: str
    target_service: str
    payload: dict[str, Any] | msgspec.Raw
    priority: int
    retry_count: int
    max_retries: int
    created_at: datetime
    ordering_key: str | None = None
    correlation_id: str | None = None
    traceparent: str | None = None


PushResult = Done | Retry | Dead | Unsent
"""What became of one push. Dead: the receiver wants no more events. Unsent: a fault of the hub, not of the receiver."""


class SendPush(Protocol):
    """Sends one signed request and maps the response. Receivers deduplicate by `message_id`."""

    def __call__(
        self,
        url: str,
        secrets: Sequence[str],
        *,
        message_id: str,
        sent_at: datetime,
        body: bytes,
        time_limit: timedelta,
        traceparent: str | None,
    ) -> Awaitable[PushResult]: ...


class Pusher:
    """Schedules and sends pushes, and updates the circuit breaker of each subscription."""

    def __init__(self, db: Database, keys: KeyRing, send: SendPush, concurrency: int = PUSH_CONCURRENCY) -> None:
        self._db = db
        self._keys = keys
        self._send = send
        self._concurrency = concurrency
        self._in_flight = PushesInFlight()
        self.due_services = DueServices()
        self._failing_ids: set[UUID] = set()

    async def schedule(self) -> list[ScheduledClaim[PushSlot]]:
        """List the subscriptions of some services with due events, and how many events each may claim."""
        async with self._db.autocommit() as tx:
            services = await self.due_services.take(tx, self._concurrency - self._in_flight.total)
            subscriptions = await list_active_push_subscriptions(tx, services) if services else []
        with_push = {subscription.service_name for subscription in subscriptions}
        self.due_services.drop_without_push(service for service in services if service not in with_push)
        slots = assign_push_slots(subscriptions)
        self.due_services.drop(with_push - {slot.service for slot in slots})
        claims = share_push_slots(slots, self._in_flight, self._concurrency)
        for claim in claims:
            if not claim.max_rows:
                self.due_services.postpone(claim.claim_filter.service)
        return [replace(claim, on_claimed=partial(self._finish_turn, claim.claim_filter.service)) for claim in claims]

    def _finish_turn(self, service: str, has_more: bool) -> None:
        self.due_services.finish_turn(service, has_more=has_more)

    async def handle(self, delivery: PushDelivery) -> Outcome:
        target = delivery.target
        self._in_flight.add(target.service_name, target.id, 1)
        try:
            return await self._push(delivery)
        finally:
            self._in_flight.add(target.service_name, target.id, -1)
            self.due_services.resume()

    async def send_test(self, subscription: Subscription) -> PushResult:
        """Send a test event now, outside the queue. The result changes nothing."""
        async with self._db.autocommit() as tx:
            target = await find_test_target(tx, subscription)
        event_id, payload = new_id(), {"subscription": str(target.id)}
        body = PushBody(
            event_id, event_id, target.event_type, HUB_ACTOR.name, target.service_name, payload, 5, 0, 0, target.now
        )
        return await self._post(body, target, self._decrypt_secrets(target))

    async def _push(self, delivery: PushDelivery) -> Outcome:
        target = delivery.target
        try:
            secrets = self._decrypt_secrets(target)
        except DecryptionError as error:  # a fault of the hub, so it must not spend the event's attempts
            log.error("secret cannot be decrypted", subscription=str(target.id), error=str(error))
            return Snooze(str(error), UNREADABLE_SECRET_DELAY)
        result = await self._post(push_body(delivery), target, secrets)
        match result:
            case Unsent():
                return await self._settle_unsent(delivery, result)
            case Dead(error):
                await self._disable_subscription(target, error)
                return Snooze(error, timedelta())
            case Done():
                await self._record_result(target, result)
                return result
            case Retry():
                await self._record_result(target, result)
                return await self._schedule_retry(delivery, result)
            case _:
                assert_never(result)

    async def _schedule_retry(self, delivery: PushDelivery, retry: Retry) -> Retry | Dead:
        """Apply the schedule. An event that holds back others of its ordering key may become a dead letter earlier."""
        event, target = delivery.event, delivery.target
        jitter = random.random()  # noqa: S311 jitter, not a secret
        delay = scheduled_delay(target.retry_schedule, event.attempt, jitter, retry.delay)
        if event.ordering_key is None or target.on_blocked == "hold":
            return replace(retry, delay=delay)
        try:
            async with self._db.autocommit() as tx:
                blocked = await tx.maybe(
                    BlockedEvents, Q.find_blocked_events, id=event.id, lease=event.lease, tries=event.attempt - 1
                )
        except PabalError as error:  # the push itself is over: its outcome counts
            log.warning("ordering key not checked", event_id=str(event.id), error=str(error))
            return replace(retry, delay=delay)
        if blocked is None or not blocked.holds_others:
            return replace(retry, delay=delay)
        limited = limit_blocked_delay(delay, blocked.first_attempt_at, blocked.now, retry.delay)
        if limited is None:
            return Dead(f"{retry.error}; it held back later events of its ordering key", retry.code, retry.stack)
        return replace(retry, delay=limited)

    async def _settle_unsent(self, delivery: PushDelivery, unsent: Unsent) -> Outcome:
        """Decide about an event that the hub could not send. The breaker stays: the receiver has not failed."""
        target = delivery.target
        log.warning("push not sent", subscription=str(target.id), service=target.service_name, error=unsent.error)
        match unsent.scope:
            case UnsentScope.ROW:
                if target.is_probe:
                    await self._release_probe(target)
                return Dead(unsent.error, unsent.code)
            case UnsentScope.TARGET:
                return await self._schedule_retry(delivery, Retry(unsent.error, code=unsent.code))
            case UnsentScope.HUB:
                return Snooze(unsent.error, HUB_FAULT_DELAY)
            case _:
                assert_never(unsent.scope)

    async def _release_probe(self, target: PushTarget) -> None:
        """Let the next event be the probe at once."""
        async with self._db.transaction() as tx:
            await tx.run(Q.release_probe, id=target.id, service=target.service_name, url=target.url)
            tx.notify(Channel.EVENTS)

    async def _post(self, body: PushBody, target: PushTarget, secrets: Sequence[str]) -> PushResult:
        return await self._send(
            target.url,
            secrets,
            message_id=str(body.origin_id),
            sent_at=target.now,
            body=msgspec.json.encode(body),
            time_limit=timedelta(seconds=target.timeout_seconds),
            traceparent=body.traceparent,
        )

    def _decrypt_secrets(self, target: PushTarget) -> list[str]:
        """The current secret, and the previous one while it still signs."""
        secrets = [decrypt_envelope(self._keys, target.secret, webhook_secret_location(target.id))]
        if target.previous_secret is not None:
            secrets.append(
                decrypt_envelope(self._keys, target.previous_secret, previous_webhook_secret_location(target.id))
            )
        return secrets

    async def _disable_subscription(self, target: PushTarget, reason: str) -> None:
        async with self._db.transaction() as tx:
            was_enabled = await disable_subscription(tx, target.id, target.service_name, target.url, reason, HUB_ACTOR)
        if was_enabled:
            log.warning("subscription disabled", subscription=str(target.id), service=target.service_name, error=reason)

    async def _record_result(self, target: PushTarget, result: Done | Retry) -> None:
        """Record a failure, or the first success after failures; most pushes write nothing."""
        is_failure = isinstance(result, Retry)
        if is_failure:
            self._failing_ids.add(target.id)
        elif target.failures or target.is_probe or target.id in self._failing_ids:
            self._failing_ids.discard(target.id)
        else:
            return
        try:
            await self._update_breaker(target, is_failure=is_failure)
        except PabalError as error:  # the push itself is over: its outcome counts
            log.warning("circuit breaker not updated", subscription=str(target.id), error=str(error))

    async def _update_breaker(self, target: PushTarget, *, is_failure: bool) -> None:
        async with self._db.transaction() as tx:
            row = await tx.maybe(BreakerRow, Q.lock_breaker, id=target.id, service=target.service_name, url=target.url)
            if row is None:
                self._failing_ids.discard(target.id)
                return
            before = CircuitBreaker(row.failures, row.open_until)
            after = before.after_failure(row.now, is_probe=target.is_probe) if is_failure else CLOSED_BREAKER
            if after == before:
                return
            state = {"failures": after.failures, "open_until": after.open_until}
            await tx.run(Q.update_breaker, id=target.id, service=target.service_name, **state)
            if before.open_until is not None and after.open_until is None:
                tx.notify(Channel.EVENTS)  # events became due while the breaker was open
        if after.open_until is not None or before.open_until is not None:
            log.warning("circuit breaker changed", subscription=str(target.id), service=target.service_name, **state)


@dataclass(frozen=True, slots=True)
class BreakerRow:
    """The columns of the breaker, and the database's time."""

    failures: int
    open_until: datetime | None
    now: datetime


@dataclass(frozen=True, slots=True)
class BlockedEvents:
    """Whether a failing event holds back later events of its ordering key, and since when it is tried."""

    holds_others: bool
    first_attempt_at: datetime
    now: datetime


def push_body(delivery: PushDelivery) -> PushBody:
    event, own = delivery.event, {"payload", "max_retries"}
    fields = {name: getattr(event, name) for name in PushBody.__struct_fields__ if name not in own}
    return PushBody(**fields, payload=raw_json(event.payload_json), max_retries=delivery.retries)
