"""Subscriptions: which events a service wants, and whether it fetches them or has them sent.

An address is checked by whoever opens the door, before the transaction: looking a name up is talking to the outside.
"""

import secrets
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from pabal.audit.record import did
from pabal.core.actor import Actor
from pabal.core.errors import Conflict, Invalid, NotFound, Unreadable
from pabal.core.ids import new_id
from pabal.core.log import get_logger
from pabal.db.bells import Bell
from pabal.db.faults import Unfit
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.events.read import Reader
from pabal.keys.envelope import Place, seal, unseal
from pabal.keys.ring import Ring

Q = beside(__file__)
log = get_logger()

MOST = 100
"""Subscriptions of one service."""
OVERLAP = timedelta(hours=24)
"""How long the secret before signs beside the new one."""
SECRET_BYTES = 32
TABLE = "pabal.subscriptions"

FIELDS = {
    "subscription_event_types": ("event_types", "are 1 to 50 types such as order.paid or order.*, of 128 characters"),
    "subscription_url_length": ("url", "is longer than 2048 characters"),
    "subscription_timeout": ("timeout_seconds", "is 1 to 60"),
}
"""The table's rules, the field each is about, and what it asks for."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A subscription to be: with a URL the hub sends there, without one the service fetches."""

    service: str
    event_types: Sequence[str]
    url: str | None = field(default=None, repr=False)
    description: str | None = None
    timeout_seconds: int = 15


@dataclass(frozen=True, slots=True)
class Change:
    """What shall be otherwise; None stays as it is. `describe` says that `description` is meant, even if it is None."""

    event_types: Sequence[str] | None = None
    url: str | None = field(default=None, repr=False)
    timeout_seconds: int | None = None
    describe: bool = False
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


async def add(tx: Tx, keys: Ring, draft: Draft, by: Actor) -> tuple[Subscription, str | None]:
    """Add a subscription; of one that pushes also the secret, which is told this once."""
    if not draft.event_types:
        raise Invalid.one(*FIELDS["subscription_event_types"])
    if await tx.value(Q.lock_service, service=draft.service) is None:
        raise NotFound(f"there is no service {draft.service}")
    if await tx.value(Q.count, service=draft.service) >= MOST:
        raise Conflict(f"{draft.service} has {MOST} subscriptions already: remove one first")
    row, secret = new_id(), new_secret() if draft.url is not None else None
    try:
        made = await tx.one(
            Subscription,
            Q.add,
            id=row,
            service=draft.service,
            mode="pull" if secret is None else "push",
            event_types=draft.event_types,
            description=draft.description,
            url=draft.url,
            secret=None if secret is None else seal(keys, secret, secret_place(row)),
            timeout_seconds=draft.timeout_seconds,
        )
    except Unfit as error:
        raise refusal(error) from None
    await did(tx, by, "subscription.added", str(row), service=draft.service, mode=made.mode)
    tx.ring(Bell.EVENTS)  # something it wants may be waiting
    return made, secret


async def find(tx: Tx, row: UUID, who: Reader) -> Subscription:
    return found(await tx.maybe(Subscription, Q.find, id=row, service=who.service, all=who.all), row)


async def every(
    tx: Tx, who: Reader, *, of: str | None = None, after: tuple[datetime, UUID] | None = None, limit: int = 50
) -> list[Subscription]:
    """The oldest first; `of` one service, `after` where the page before ended."""
    at, row = after or (None, None)
    return await tx.all(
        Subscription, Q.list, service=who.service, all=who.all, of=of, after=at, after_id=row, limit=limit
    )


async def change(tx: Tx, row: UUID, who: Reader, to: Change, by: Actor) -> Subscription:
    subscription = await held(tx, row, who)
    if subscription.mode == "handler":
        raise Conflict("its types are those its handlers name, and it goes nowhere else")
    if subscription.mode != "push" and to.url is not None:
        raise Conflict("url: this subscription is for pulling; add another one for an address")
    try:
        changed = await tx.one(
            Subscription,
            Q.change,
            id=row,
            service=subscription.service_name,
            event_types=to.event_types,
            url=to.url,
            timeout_seconds=to.timeout_seconds,
            describe=to.describe,
            description=to.description,
        )
    except Unfit as error:
        raise refusal(error) from None
    await did(tx, by, "subscription.changed", str(row), service=subscription.service_name)
    tx.ring(Bell.EVENTS)
    return changed


async def remove(tx: Tx, row: UUID, who: Reader, by: Actor) -> None:
    """Forget a subscription. What is owed to the service stays owed: it can be pulled."""
    subscription = await held(tx, row, who)
    await tx.run(Q.remove, id=row, service=subscription.service_name)
    await did(tx, by, "subscription.removed", str(row), service=subscription.service_name)


async def pause(tx: Tx, row: UUID, who: Reader, by: Actor) -> Subscription:
    """Send nothing more, from now on; what comes waits. What is on its way arrives."""
    subscription = await sent_to(tx, row, who, "paused by not pulling")
    if subscription.paused_at is not None:
        return subscription
    await did(tx, by, "subscription.paused", str(row), service=subscription.service_name)
    return await tx.one(Subscription, Q.pause, id=row, service=subscription.service_name)


async def resume(tx: Tx, row: UUID, who: Reader, by: Actor) -> Subscription:
    """Send again, also to a receiver that was given up or fails."""
    subscription = await sent_to(tx, row, who, "resumed by pulling")
    await did(tx, by, "subscription.resumed", str(row), service=subscription.service_name)
    tx.ring(Bell.EVENTS)
    return await tx.one(Subscription, Q.resume, id=row, service=subscription.service_name)


async def disable(tx: Tx, row: UUID, service: str, url: str, why: str, by: Actor) -> bool:  # noqa: PLR0917
    """Give the receiver at this address up for good, or until somebody resumes it; whether it had not been before."""
    if not await tx.run(Q.disable, id=row, service=service, url=url, why=why):
        return False
    await did(tx, by, "subscription.disabled", str(row), service=service)
    return True


async def rotate_secret(tx: Tx, keys: Ring, row: UUID, who: Reader, by: Actor) -> tuple[Subscription, str]:
    """Make a new secret, told this once; the one before signs beside it for a day."""
    subscription = await pushing(tx, row, who, "not signed")
    service, secret = subscription.service_name, new_secret()
    sealed = await tx.value(Q.secret, id=row, service=service)
    try:
        previous = seal(keys, unseal(keys, sealed, secret_place(row)), previous_place(row))
    except Unreadable:  # under a key that is lost; a new secret is then the way out
        log.warning("secret lost", subscription=str(row))
        previous = None
    rotated = await tx.one(
        Subscription,
        Q.rotate_secret,
        id=row,
        service=service,
        secret=seal(keys, secret, secret_place(row)),
        previous=previous,
        overlap=OVERLAP,
    )
    await did(tx, by, "subscription.secret_rotated", str(row), service=service)
    return rotated, secret


async def held(tx: Tx, row: UUID, who: Reader) -> Subscription:
    """One's own subscription, which nobody else changes meanwhile. Those the hub makes for itself are its own."""
    subscription = found(await tx.maybe(Subscription, Q.hold, id=row, service=who.service, all=who.all), row)
    if subscription.mode == "rule":
        raise Conflict("this subscription belongs to a rule of the hub, and goes with it")
    return subscription


async def sent_to(tx: Tx, row: UUID, who: Reader, otherwise: str) -> Subscription:
    """One that is brought its events: pushed to, or handled by a worker's code."""
    subscription = await held(tx, row, who)
    if subscription.mode == "pull":
        raise Conflict(f"a pull subscription is {otherwise}")
    return subscription


async def pushing(tx: Tx, row: UUID, who: Reader, otherwise: str) -> Subscription:
    subscription = await held(tx, row, who)
    if subscription.mode != "push":
        raise Conflict(f"a {subscription.mode} subscription is {otherwise}")
    return subscription


def found(subscription: Subscription | None, row: UUID) -> Subscription:
    if subscription is None:
        raise NotFound(f"there is no subscription {row}")
    return subscription


def refusal(error: Unfit) -> Exception:
    """The table's refusal, by the field it is about."""
    named = FIELDS.get(error.constraint or "")
    return Invalid.one(*named) if named else error


def new_secret() -> str:
    """A secret as Standard Webhooks writes it."""
    return "whsec_" + b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def secret_place(row: UUID) -> Place:
    return Place(TABLE, "secret", row)


def previous_place(row: UUID) -> Place:
    return Place(TABLE, "previous_secret", row)
