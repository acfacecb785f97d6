"""Subscriptions: which events a service receives, and whether it pulls them or the hub pushes them.

The endpoint checks the URL before it opens the transaction, because the check resolves a host name.
"""

import secrets
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

from pabal.audit.record import record_action
from pabal.core.actor import Actor
from pabal.core.errors import Conflict, DecryptionError, Forbidden, Invalid, NotFound
from pabal.core.event_types import HUB_EVENT_TYPES, patterns_overlap
from pabal.core.ids import new_id
from pabal.core.log import get_logger
from pabal.db.doorbell.channels import Channel
from pabal.db.errors import CheckViolation
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.events.events import EventAccess
from pabal.keys.envelope import EnvelopeLocation, decrypt_envelope, encrypt_envelope
from pabal.keys.keyring import KeyRing
from pabal.limits import RateLimit

Q = load_queries(__file__)
log = get_logger()

OnBlocked = Literal["hold", "dead_letter"]
"""What becomes of a failing push that holds back later events of its ordering key."""
SubscriptionMode = Literal["pull", "push", "handler", "rule"]

MAX_SUBSCRIPTIONS = 100
"""The default limit per service."""
SECRET_OVERLAP = timedelta(hours=24)
"""How long the previous secret signs beside the new one."""
SECRET_BYTES = 32
MAX_SUBSCRIPTION_DESCRIPTION = 500
SUBSCRIPTION_TEST_LIMIT = RateLimit("tests of this subscription", 10, timedelta(minutes=1))
"""Each test sends a request at once, outside the queue."""
SUBSCRIPTIONS_TABLE = "pabal.subscriptions"

SUBSCRIPTION_CONSTRAINT_FIELDS = {
    "subscription_event_types": ("event_types", "are 1 to 50 types such as order.paid or order.*, of 128 characters"),
    "subscription_url_length": ("url", "is longer than 2048 characters"),
    "subscription_timeout": ("timeout_seconds", "is 1 to 60"),
    "subscription_retry_schedule": ("retry_schedule", "are 1 to 20 delays of 1 to 86400 seconds"),
}
"""The constraints of the table, the field that each is about, and the error detail."""


@dataclass(frozen=True, slots=True)
class SubscriptionDraft:
    """A subscription to add: push with a URL, pull without one."""

    service: str
    event_types: Sequence[str]
    url: str | None = field(default=None, repr=False)
    description: str | None = None
    timeout_seconds: int = 15
    retry_schedule: Sequence[int] | None = None
    """Seconds before each retry of a push; None means the default schedule."""
    on_blocked: OnBlocked = "dead_letter"


@dataclass(frozen=True, slots=True)
class SubscriptionPatch:
    """The fields to change; None keeps a value. `set_description` and `set_retry_schedule` also set None."""

    event_types: Sequence[str] | None = None
    url: str | None = field(default=None, repr=False)
    timeout_seconds: int | None = None
    set_description: bool = False
    description: str | None = None
    set_retry_schedule: bool = False
    retry_schedule: Sequence[int] | None = None
    on_blocked: OnBlocked | None = None


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscription, without its secret. `program` is the program whose handlers receive its events, else empty.

    `open_until`: the receiver keeps failing, and nothing is sent before this time.
    """

    id: UUID
    service_name: str
    mode: SubscriptionMode
    program: str
    event_types: Sequence[str]
    description: str | None
    url: str | None = field(repr=False)
    timeout_seconds: int
    retry_schedule: Sequence[int] | None
    on_blocked: OnBlocked
    paused_at: datetime | None
    disabled_at: datetime | None
    disabled_reason: str | None
    failures: int
    open_until: datetime | None
    previous_secret_until: datetime | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class SubscriberRights:
    """The event types that a service may receive. `may_subscribe` None means all but the hub's."""

    may_subscribe: Sequence[str] | None
    receives_hub_events: bool


async def add_subscription(
    tx: Tx, keys: KeyRing, draft: SubscriptionDraft, actor: Actor, max_subscriptions: int = MAX_SUBSCRIPTIONS
) -> tuple[Subscription, str | None]:
    """Add a subscription; return it with the secret, which cannot be read again. A pull subscription has none.

    `max_subscriptions` is the limit per service.
    """
    if not draft.event_types:
        raise Invalid.of_field(*SUBSCRIPTION_CONSTRAINT_FIELDS["subscription_event_types"])
    if await tx.value(Q.lock_service, service=draft.service) is None:
        raise NotFound(f"No such service: {draft.service}")
    await _check_subscribe_right(tx, draft.service, draft.event_types)
    if await tx.value(Q.count_subscriptions, service=draft.service) >= max_subscriptions:
        raise Conflict(f"{draft.service} already has {max_subscriptions} subscriptions. Remove one first")
    subscription_id, secret = new_id(), new_webhook_secret() if draft.url is not None else None
    try:
        subscription = await tx.one(
            Subscription,
            Q.insert_subscription,
            id=subscription_id,
            service=draft.service,
            mode="pull" if secret is None else "push",
            event_types=draft.event_types,
            description=draft.description,
            url=draft.url,
            secret=None if secret is None else encrypt_envelope(keys, secret, webhook_secret_location(subscription_id)),
            timeout_seconds=draft.timeout_seconds,
            retry_schedule=draft.retry_schedule,
            on_blocked=draft.on_blocked,
        )
    except CheckViolation as error:
        raise subscription_constraint_error(error) from None
    await record_action(
        tx, actor, "subscription.added", str(subscription_id), service=draft.service, mode=subscription.mode
    )
    tx.notify(Channel.EVENTS)  # matching events may be due already
    return subscription, secret


async def find_subscription(tx: Tx, subscription_id: UUID, access: EventAccess) -> Subscription:
    return require_subscription(
        await tx.maybe(
            Subscription, Q.find_subscription, id=subscription_id, service=access.service, all=access.all_services
        ),
        subscription_id,
    )


async def list_subscriptions(
    tx: Tx,
    access: EventAccess,
    *,
    service: str | None = None,
    after: tuple[datetime, UUID] | None = None,
    limit: int = 50,
) -> list[Subscription]:
    """List subscriptions, the oldest first. `after` is the end of the previous page."""
    created_at, subscription_id = after or (None, None)
    return await tx.all(
        Subscription,
        Q.list_subscriptions,
        service=access.service,
        all=access.all_services,
        of=service,
        after=created_at,
        after_id=subscription_id,
        limit=limit,
    )


async def update_subscription(
    tx: Tx, subscription_id: UUID, access: EventAccess, patch: SubscriptionPatch, actor: Actor
) -> Subscription:
    subscription = await lock_subscription(tx, subscription_id, access)
    if subscription.mode == "handler":
        raise Conflict("The handlers of a worker define this subscription. Change them instead")
    if subscription.mode != "push" and patch.url is not None:
        raise Conflict("url: a pull subscription has no URL. Add a push subscription instead")
    if patch.event_types is not None:
        await _check_subscribe_right(tx, subscription.service_name, patch.event_types)
    try:
        updated = await tx.one(
            Subscription,
            Q.update_subscription,
            id=subscription_id,
            service=subscription.service_name,
            event_types=patch.event_types,
            url=patch.url,
            timeout_seconds=patch.timeout_seconds,
            set_description=patch.set_description,
            description=patch.description,
            set_retry_schedule=patch.set_retry_schedule,
            retry_schedule=patch.retry_schedule,
            on_blocked=patch.on_blocked,
        )
    except CheckViolation as error:
        raise subscription_constraint_error(error) from None
    await record_action(tx, actor, "subscription.changed", str(subscription_id), service=subscription.service_name)
    tx.notify(Channel.EVENTS)
    return updated


async def remove_subscription(tx: Tx, subscription_id: UUID, access: EventAccess, actor: Actor) -> None:
    """Remove a subscription. Deliveries queued for the service stay and can be pulled."""
    subscription = await lock_subscription(tx, subscription_id, access)
    await tx.run(Q.delete_subscription, id=subscription_id, service=subscription.service_name)
    await record_action(tx, actor, "subscription.removed", str(subscription_id), service=subscription.service_name)


async def pause_subscription(tx: Tx, subscription_id: UUID, access: EventAccess, actor: Actor) -> Subscription:
    """Stop sending. New events wait; pushes already sent arrive."""
    subscription = await lock_push_or_handler_subscription(tx, subscription_id, access, "paused: stop pulling")
    if subscription.paused_at is not None:
        return subscription
    await record_action(tx, actor, "subscription.paused", str(subscription_id), service=subscription.service_name)
    return await tx.one(Subscription, Q.pause_subscription, id=subscription_id, service=subscription.service_name)


async def resume_subscription(tx: Tx, subscription_id: UUID, access: EventAccess, actor: Actor) -> Subscription:
    """Send again, also if the subscription is disabled or its circuit breaker is open."""
    subscription = await lock_push_or_handler_subscription(tx, subscription_id, access, "resumed: pull")
    await record_action(tx, actor, "subscription.resumed", str(subscription_id), service=subscription.service_name)
    tx.notify(Channel.EVENTS)
    return await tx.one(Subscription, Q.resume_subscription, id=subscription_id, service=subscription.service_name)


async def disable_subscription(
    tx: Tx, subscription_id: UUID, service: str, url: str, reason: str, actor: Actor
) -> bool:
    """Stop sending to this URL until the subscription is resumed; return whether it was enabled."""
    if not await tx.run(Q.disable_subscription, id=subscription_id, service=service, url=url, reason=reason):
        return False
    await record_action(tx, actor, "subscription.disabled", str(subscription_id), service=service)
    return True


async def rotate_subscription_secret(
    tx: Tx, keys: KeyRing, subscription_id: UUID, access: EventAccess, actor: Actor
) -> tuple[Subscription, str]:
    """Create a new secret, which cannot be read again. The previous one signs beside it for SECRET_OVERLAP."""
    subscription = await lock_push_subscription(tx, subscription_id, access, "has no secret")
    service, secret = subscription.service_name, new_webhook_secret()
    encrypted = await tx.value(Q.find_secret, id=subscription_id, service=service)
    try:
        previous = encrypt_envelope(
            keys,
            decrypt_envelope(keys, encrypted, webhook_secret_location(subscription_id)),
            previous_webhook_secret_location(subscription_id),
        )
    except DecryptionError:  # its key is lost; rotating the secret is how to recover
        log.warning("previous secret cannot be decrypted", subscription=str(subscription_id))
        previous = None
    rotated = await tx.one(
        Subscription,
        Q.rotate_secret,
        id=subscription_id,
        service=service,
        secret=encrypt_envelope(keys, secret, webhook_secret_location(subscription_id)),
        previous=previous,
        overlap=SECRET_OVERLAP,
    )
    await record_action(tx, actor, "subscription.secret_rotated", str(subscription_id), service=service)
    return rotated, secret


async def _check_subscribe_right(tx: Tx, service: str, event_types: Sequence[str]) -> None:
    """Raise Forbidden for a type that the service would never receive.

    A wildcard means all matching types that the service may receive, now or later: the trigger that matches events
    with subscriptions applies the rights of that time.
    """
    rights = await tx.one(SubscriberRights, Q.find_subscriber_rights, service=service)
    for event_type in event_types:
        if event_type in HUB_EVENT_TYPES and not rights.receives_hub_events:
            raise Forbidden(f"event_types: {event_type} requires the permission hub:events")
        patterns = rights.may_subscribe
        if patterns is not None and not any(patterns_overlap(event_type, pattern) for pattern in patterns):
            raise Forbidden(f"event_types: {service} may not subscribe to {event_type}")


async def lock_subscription(tx: Tx, subscription_id: UUID, access: EventAccess) -> Subscription:
    """Lock a subscription that the caller may change, until the transaction ends."""
    subscription = require_subscription(
        await tx.maybe(
            Subscription, Q.lock_subscription, id=subscription_id, service=access.service, all=access.all_services
        ),
        subscription_id,
    )
    if subscription.mode == "rule":
        raise Conflict("This subscription belongs to a notification rule. Change the rule instead")
    return subscription


async def lock_push_or_handler_subscription(
    tx: Tx, subscription_id: UUID, access: EventAccess, hint: str
) -> Subscription:
    subscription = await lock_subscription(tx, subscription_id, access)
    if subscription.mode == "pull":
        raise Conflict(f"A pull subscription cannot be {hint} instead")
    return subscription


async def lock_push_subscription(tx: Tx, subscription_id: UUID, access: EventAccess, hint: str) -> Subscription:
    subscription = await lock_subscription(tx, subscription_id, access)
    if subscription.mode != "push":
        raise Conflict(f"A {subscription.mode} subscription {hint}")
    return subscription


def require_subscription(subscription: Subscription | None, subscription_id: UUID) -> Subscription:
    if subscription is None:
        raise NotFound(f"No such subscription: {subscription_id}")
    return subscription


def subscription_constraint_error(error: CheckViolation) -> Exception:
    """Name the invalid field, if the constraint is about one."""
    field_and_detail = SUBSCRIPTION_CONSTRAINT_FIELDS.get(error.constraint or "")
    return Invalid.of_field(*field_and_detail) if field_and_detail else error


def new_webhook_secret() -> str:
    """A secret in the format of Standard Webhooks."""
    return "whsec_" + b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def webhook_secret_location(subscription_id: UUID) -> EnvelopeLocation:
    return EnvelopeLocation(SUBSCRIPTIONS_TABLE, "secret", subscription_id)


def previous_webhook_secret_location(subscription_id: UUID) -> EnvelopeLocation:
    return EnvelopeLocation(SUBSCRIPTIONS_TABLE, "previous_secret", subscription_id)
