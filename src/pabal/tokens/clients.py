"""A service that shows its secret.

Whether the name is unknown, the secret wrong or the service disabled: the same words, after the same work. Failures are
limited by address, and by service for addresses that have failed before: otherwise anybody could keep a service out by
failing in its name.
"""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from pabal.audit.record import did
from pabal.core.actor import Actor
from pabal.core.errors import TooMany, UnknownClient
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.limits import Limit, look, take, whose
from pabal.tokens.digest import hashed
from pabal.tokens.permission import Permission, expanded
from pabal.tokens.services import NAME

Q = beside(__file__)

PER_ADDRESS = Limit("failed authentications from this address", 20, timedelta(minutes=5))
PER_SERVICE = Limit("failed authentications of this service", 100, timedelta(minutes=5))
TO_NOTE = Limit("notes of failed authentications", 1, timedelta(minutes=1))


@dataclass(frozen=True, slots=True)
class Credentials:
    """What is known of a service by its name; all of it empty when there is none."""

    name: str | None
    permissions: Sequence[str] | None
    is_active: bool | None
    now: datetime
    secrets: Sequence[str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Client:
    """A service that has shown its secret, and what it may ask for. `now` is the database's time when it did."""

    service: str
    allowed: tuple[str, ...]
    now: datetime = field(repr=False)

    @property
    def permissions(self) -> frozenset[Permission]:
        return expanded(self.allowed)


async def authenticate(tx: Tx, name: str, secret: str, by: Actor) -> Client:
    """See that this is the service it says it is. Give it no transaction: what it counts must outlast its refusal."""
    address = whose(by.client_ip or "nowhere")
    name = name if NAME.fullmatch(name) else "?"  # no service is called so, and all such calls count together
    here, there = await look(tx, (PER_ADDRESS, address), (PER_SERVICE, name))
    if here.wait:
        raise TooMany(PER_ADDRESS.what, here.wait)
    if there.wait and here.counted:
        raise TooMany(PER_SERVICE.what, there.wait)
    known = await tx.one(Credentials, Q.credentials, service=name)
    if not fits(secret, known.secrets) or not known.is_active or known.name is None:
        await _failed(tx, name, address, by, known=known.name is not None)
        raise UnknownClient
    return Client(known.name, tuple(known.permissions or ()), known.now)


def fits(secret: str, hashes: Sequence[str]) -> bool:
    """Compare with both places, in the time that takes whether they are taken or not."""
    given = hashed(secret)
    places = (*hashes, "", "")[: max(2, len(hashes))]
    return sum(hmac.compare_digest(given, each) for each in places) > 0


async def _failed(tx: Tx, name: str, address: str, by: Actor, *, known: bool) -> None:
    """Count it, and note it once a minute: for a name we know under that name, for all others together."""
    subject = name if known else "unknown"
    try:
        await take(tx, TO_NOTE, f"{subject}:{address}")
    except TooMany:
        pass
    else:
        await did(tx, by, "authentication.failed", subject)
    await take(tx, PER_ADDRESS, address)
    await take(tx, PER_SERVICE, name)
