"""People: what lets one person see their own toasts and preferences.

A service asks for a link, which is good for a quarter of an hour: as a bearer token at the doors, or once for a cookie.
"""

import hashlib
import secrets
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from pabal.audit.record import did
from pabal.core.actor import Actor
from pabal.core.errors import Unauthenticated
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.notifications.alias import alias

Q = beside(__file__)

PREFIX = "pbp_"
LINK_LIFE = timedelta(minutes=15)
COOKIE_LIFE = timedelta(days=7)

Kind = Literal["link", "cookie"]


@dataclass(frozen=True, slots=True)
class Person:
    """Who has shown a good token: a Discord user. `token` names what they have shown, and lets nobody in."""

    id: str
    token: str


@dataclass(frozen=True, slots=True)
class Link:
    """A token for one person, told once."""

    token: str = field(repr=False)
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Swapped:
    discord_id: str
    issued_by: str


async def issue(tx: Tx, person: str, by: Actor) -> Link:
    """Make a token for a person, known here or not."""
    token = made_up()
    expires_at = await tx.value(
        Q.issue, token_hash=digest(token), person=person, kind="link", issued_by=by.name, life=LINK_LIFE
    )
    await did(tx, by, "person_token.issued", alias(person))
    return Link(token, expires_at)


async def swap(tx: Tx, token: str) -> str | None:
    """Take a link, once, and give what its person's browser may keep; None for a link that is no longer good."""
    link = await tx.maybe(Swapped, Q.swap, token_hash=digest(token))
    if link is None:
        return None
    cookie = made_up()
    await tx.value(
        Q.issue,
        token_hash=digest(cookie),
        person=link.discord_id,
        kind="cookie",
        issued_by=link.issued_by,
        life=COOKIE_LIFE,
    )
    return cookie


async def person_of(tx: Tx, token: str, kind: Kind) -> Person:
    """Find whose token this is."""
    person = await tx.maybe(Person, Q.find, token_hash=digest(token), kind=kind)
    if person is None:
        raise Unauthenticated("this token is not known, or no longer good")
    return person


async def ended(tx: Tx, tokens: Collection[str]) -> set[str]:
    """Those of these tokens that let nobody in any more."""
    return {*await tx.column(Q.ended, hashes=[*tokens])}


async def leave(tx: Tx, person: Person) -> None:
    """Forget the token a person came with."""
    await tx.run(Q.leave, token_hash=person.token)


async def sweep(tx: Tx, batch: int) -> int:
    """Drop the tokens that have expired; how many went."""
    return await tx.run(Q.sweep, batch=batch)


def made_up() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def digest(token: str) -> str:
    """SHA-256, plain: what is kept of tokens, which are 256 random bits."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
