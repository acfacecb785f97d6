"""Subscriptions: which events a service wants, and whether it fetches them or has them sent.

An address is checked by whoever opens the door, before the transaction: looking a name up is talking to the outside.
"""

import secrets
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from pabal.audit.record import record_action
from pabal.core.actor import Actor
from pabal.core.errors import Conflict, DecryptionError, Invalid, NotFound
from pabal.core.ids import new_id
from pabal.core.log import get_logger
from pabal.db.channels import Channel
from pabal.db.errors import CheckViolation
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.events.events import EventAccess
from pabal.keys.envelope import EnvelopeLocation, decrypt_envelope, encrypt_envelope
from pabal.keys.keyring import KeyRing

Q = load_queries(__file__)
log = get_logger()

MAX_SUBSCRIPTIONS = 100
"""Subscriptions of one service."""
SECRET_OVERLAP = timedelta(hours=24)
"""How long the secret before signs beside the new one."""
SECRET_BYTES = 32
SUBSCRIPTIONS_TABLE = "pabal.subscriptions"

SUBSCRIPTION_CONSTRAINT_FIELDS = {
    "subscription_event_types": ("event_types", "are 1 to 50 types such as order.paid or order.*, of 128 characters"),
    "subscription_url_length": ("url", "is longer than 2048 characters"),
    "subscription_timeout": ("timeout_seconds", "is 1 to 60"),
}
"""The table's rules, the field each is about, and what it asks for."""


@dataclass(frozen=True, slots=True)
class SubscriptionDraft:
    """A subscription to be: with a URL the hub sends there, without one the service fetches."""

    service: str
    event_types: Sequence[str]
    url: str | None = field(default=None, repr=False)
    description: str | None = None
    timeout_seconds: int = 15


@dataclass(frozen=True, slots=True)
class SubscriptionPatch:
    """What shall be otherwise; None stays as it is. `describe` says that `description` is meant, even if it is None."""

    event_types: Sequence[str] | None = None
    url: str | None = field(default=None, repr=False)
    timeout_seconds: int | None = None
    set_description: bool = False
    description: str | None = None


@dataclass(frozen=True, slots=True)
class Subscription:
    """A service's wish to receive events, without the secret its pushes are signed with."""

    id: UUID
    service_name: str
    mode: str
    program: str
    event_types: Sequence[str]
    description: str | None
    url: str | None = field(repr=False)
    timeout_seconds: int
    paused_at: datetime | None
    disabled_at: datetime | None
    disabled_reason: str | None
    failures: int
    open_until: datetime | None
    previous_secret_until: datetime | None
    created_at: datetime
    updated_at: datetime


async def add_subscription(
    tx: Tx, keys: KeyRing, draft: SubscriptionDraft, actor: Actor
) -> tuple[Subscription, str | None]:
    """Add a subscription; of one that pushes also the secret, which is told this once."""
    if not draft.event_types:
        raise Invalid.of_field(*SUBSCRIPTION_CONSTRAINT_FIELDS["subscription_event_types"])
    if await tx.value(Q.lock_service, service=draft.service) is None:
        raise NotFound(f"there is no service {draft.service}")
    if await tx.value(Q.count_subscriptions, service=draft.service) >= MAX_SUBSCRIPTIONS:
        raise Conflict(f"{draft.service} has {MAX_SUBSCRIPTIONS} subscriptions already: remove one first")
    row, secret = new_id(), new_webhook_secret() if draft.url is not None else None
    try:
        made = await tx.one(
            Subscription,
            Q.insert_subscription,
            id=row,
            service=draft.service,
            mode="pull" if secret is None else "push",
            event_types=draft.event_types,
            description=draft.description,
            url=draft.url,
            secret=None if secret is None else encrypt_envelope(keys, secret, webhook_secret_location(row)),
            timeout_seconds=draft.timeout_seconds,
        )
    except CheckViolation as error:
        raise subscription_constraint_error(error) from None
    await record_action(tx, actor, "subscription.added", str(row), service=draft.service, mode=made.mode)
    tx.notify(Channel.EVENTS)  # something it wants may be waiting
    return made, secret


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
    """The oldest first; `of` one service, `after` where the page before ended."""
    at, row = after or (None, None)
    return await tx.all(
        Subscription,
        Q.list_subscriptions,
        service=access.service,
        all=access.all_services,
        of=service,
        after=at,
        after_id=row,
        limit=limit,
    )


async def update_subscription(
    tx: Tx, subscription_id: UUID, access: EventAccess, patch: SubscriptionPatch, actor: Actor
) -> Subscription:
    subscription = await lock_subscription(tx, subscription_id, access)
    if subscription.mode == "handler":
        raise Conflict("its types are those its handlers name, and it goes nowhere else")
    if subscription.mode != "push" and patch.url is not None:
        raise Conflict("url: this subscription is for pulling; add another one for an address")
    try:
        changed = await tx.one(
            Subscription,
            Q.update_subscription,
            id=subscription_id,
            service=subscription.service_name,
            event_types=patch.event_types,
            url=patch.url,
            timeout_seconds=patch.timeout_seconds,
            describe=patch.set_description,
            description=patch.description,
        )
    except CheckViolation as error:
        raise subscription_constraint_error(error) from None
    await record_action(tx, actor, "subscription.changed", str(subscription_id), service=subscription.service_name)
    tx.notify(Channel.EVENTS)
    return changed


async def remove_subscription(tx: Tx, subscription_id: UUID, access: EventAccess, actor: Actor) -> None:
    """Forget a subscription. What is owed to the service stays owed: it can be pulled."""
    subscription = await lock_subscription(tx, subscription_id, access)
    await tx.run(Q.delete_subscription, id=subscription_id, service=subscription.service_name)
    await record_action(tx, actor, "subscription.removed", str(subscription_id), service=subscription.service_name)


async def pause_subscription(tx: Tx, subscription_id: UUID, access: EventAccess, actor: Actor) -> Subscription:
    """Send nothing more, from now on; what comes waits. What is on its way arrives."""
    subscription = await lock_push_or_handler_subscription(tx, subscription_id, access, "paused by not pulling")
    if subscription.paused_at is not None:
        return subscription
    await record_action(tx, actor, "subscription.paused", str(subscription_id), service=subscription.service_name)
    return await tx.one(Subscription, Q.pause_subscription, id=subscription_id, service=subscription.service_name)


async def resume_subscription(tx: Tx, subscription_id: UUID, access: EventAccess, actor: Actor) -> Subscription:
    """Send again, also to a receiver that was given up or fails."""
    subscription = await lock_push_or_handler_subscription(tx, subscription_id, access, "resumed by pulling")
    await record_action(tx, actor, "subscription.resumed", str(subscription_id), service=subscription.service_name)
    tx.notify(Channel.EVENTS)
    return await tx.one(Subscription, Q.resume_subscription, id=subscription_id, service=subscription.service_name)


async def disable_subscription(
    tx: Tx, subscription_id: UUID, service: str, url: str, reason: str, actor: Actor
) -> bool:
    """Give the receiver at this address up for good, or until somebody resumes it; whether it had not been before."""
    if not await tx.run(Q.disable_subscription, id=subscription_id, service=service, url=url, why=reason):
        return False
    await record_action(tx, actor, "subscription.disabled", str(subscription_id), service=service)
    return True


async def rotate_subscription_secret(
    tx: Tx, keys: KeyRing, subscription_id: UUID, access: EventAccess, actor: Actor
) -> tuple[Subscription, str]:
    """Make a new secret, told this once; the one before signs beside it for a day."""
    subscription = await lock_push_subscription(tx, subscription_id, access, "not signed")
    service, secret = subscription.service_name, new_webhook_secret()
    sealed = await tx.value(Q.find_secret, id=subscription_id, service=service)
    try:
        previous = encrypt_envelope(
            keys,
            decrypt_envelope(keys, sealed, webhook_secret_location(subscription_id)),
            previous_webhook_secret_location(subscription_id),
        )
    except DecryptionError:  # under a key that is lost; a new secret is then the way out
        log.warning("secret lost", subscription=str(subscription_id))
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


async def lock_subscription(tx: Tx, subscription_id: UUID, access: EventAccess) -> Subscription:
    """One's own subscription, which nobody else changes meanwhile. Those the hub makes for itself are its own."""
    subscription = require_subscription(
        await tx.maybe(
            Subscription, Q.lock_subscription, id=subscription_id, service=access.service, all=access.all_services
        ),
        subscription_id,
    )
    if subscription.mode == "rule":
        raise Conflict("this subscription belongs to a rule of the hub, and goes with it")
    return subscription


async def lock_push_or_handler_subscription(
    tx: Tx, subscription_id: UUID, access: EventAccess, hint: str
) -> Subscription:
    """One that is brought its events: pushed to, or handled by a worker's code."""
    subscription = await lock_subscription(tx, subscription_id, access)
    if subscription.mode == "pull":
        raise Conflict(f"a pull subscription is {hint}")
    return subscription


async def lock_push_subscription(tx: Tx, subscription_id: UUID, access: EventAccess, hint: str) -> Subscription:
    subscription = await lock_subscription(tx, subscription_id, access)
    if subscription.mode != "push":
        raise Conflict(f"a {subscription.mode} subscription is {hint}")
    return subscription


def require_subscription(subscription: Subscription | None, subscription_id: UUID) -> Subscription:
    if subscription is None:
        raise NotFound(f"there is no subscription {subscription_id}")
    return subscription


def subscription_constraint_error(error: CheckViolation) -> Exception:
    """The table's refusal, by the field it is about."""
    named = SUBSCRIPTION_CONSTRAINT_FIELDS.get(error.constraint or "")
    return Invalid.of_field(*named) if named else error


def new_webhook_secret() -> str:
    """A secret as Standard Webhooks writes it."""
    return "whsec_" + b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def webhook_secret_location(subscription_id: UUID) -> EnvelopeLocation:
    return EnvelopeLocation(SUBSCRIPTIONS_TABLE, "secret", subscription_id)


def previous_webhook_secret_location(subscription_id: UUID) -> EnvelopeLocation:
    return EnvelopeLocation(SUBSCRIPTIONS_TABLE, "previous_secret", subscription_id)
