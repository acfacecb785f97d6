"""Person tokens: they let one person see their own toasts and preferences.

A service issues a link token, valid for 15 minutes. It is a bearer token, or is exchanged once for a cookie.
"""

import secrets
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

from pabal.audit.pseudonym import person_pseudonym
from pabal.audit.record import record_action
from pabal.core.actor import Actor
from pabal.core.errors import NotFound, Unauthenticated
from pabal.core.secrets import hash_token
from pabal.db.errors import ForeignKeyViolation
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.notifications.people.preferences import PreferencesOwner, parse_preferences_owner

Q = load_queries(__file__)

PERSON_TOKEN_PREFIX = "pbp_"  # noqa: S105
PERSON_LINK_LIFETIME = timedelta(minutes=15)
PERSON_COOKIE_LIFETIME = timedelta(days=7)

PersonTokenKind = Literal["link", "cookie"]


@dataclass(frozen=True, slots=True)
class Person:
    """An authenticated Discord user. `token_hash` identifies the token, but does not authenticate."""

    id: str
    token_hash: str
    user_id: UUID | None = None
    """The registered user whom the token was issued for. `id` is then their linked Discord account, if there is one."""

    @property
    def owner(self) -> PreferencesOwner:
        """Whose preferences these are: the Discord account, or a registered user without one."""
        return self.user_id if self.user_id is not None and self.id == str(self.user_id) else self.id


@dataclass(frozen=True, slots=True)
class PersonLink:
    """A new link token. The plain token is not stored."""

    token: str = field(repr=False)
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class ExchangedLink:
    """The row of `exchange_link`."""

    discord_id: str
    user_id: UUID | None
    issued_by: str


async def issue_person_link(tx: Tx, person_id: str, actor: Actor) -> PersonLink:
    """Issue a link token for a Discord user, also for one the hub does not know yet, or for a registered user."""
    token, owner = new_person_token(), parse_preferences_owner(person_id)
    try:
        expires_at = await tx.value(
            Q.insert_token,
            token_hash=hash_person_token(token),
            person=str(owner),
            user=owner if isinstance(owner, UUID) else None,
            kind="link",
            issued_by=actor.name,
            life=PERSON_LINK_LIFETIME,
        )
    except ForeignKeyViolation:
        raise NotFound("No such user") from None
    await record_action(tx, actor, "person_token.issued", person_pseudonym(str(owner)))
    return PersonLink(token, expires_at)


async def exchange_person_link(tx: Tx, token: str) -> str | None:
    """Exchange a link token for a cookie token. Return None if it is unknown, expired or already exchanged."""
    link = await tx.maybe(ExchangedLink, Q.exchange_link, token_hash=hash_person_token(token))
    if link is None:
        return None
    cookie = new_person_token()
    await tx.value(
        Q.insert_token,
        token_hash=hash_person_token(cookie),
        person=link.discord_id,
        user=link.user_id,
        kind="cookie",
        issued_by=link.issued_by,
        life=PERSON_COOKIE_LIFETIME,
    )
    return cookie


async def find_person_by_token(tx: Tx, token: str, kind: PersonTokenKind) -> Person:
    """Return the owner of a valid token."""
    person = await tx.maybe(Person, Q.find_token, token_hash=hash_person_token(token), kind=kind)
    if person is None:
        raise Unauthenticated("The token is unknown or has expired")
    return person


async def find_ended_person_tokens(tx: Tx, token_hashes: Collection[str]) -> set[str]:
    """Return the tokens among these that are no longer valid."""
    return {*await tx.column(Q.list_ended_tokens, hashes=[*token_hashes])}


async def revoke_person_token(tx: Tx, person: Person) -> None:
    """Delete the token a person authenticated with."""
    await tx.run(Q.delete_token, token_hash=person.token_hash)


async def revoke_user_tokens(tx: Tx, user_id: UUID) -> None:
    """Delete all tokens of a registered user, because the account they may see has changed."""
    await tx.run(Q.delete_user_tokens, user=user_id)


async def purge_person_tokens(tx: Tx, batch: int) -> int:
    """Delete expired tokens. Return how many."""
    return await tx.run(Q.purge_expired_tokens, batch=batch)


def new_person_token() -> str:
    return PERSON_TOKEN_PREFIX + secrets.token_urlsafe(32)


def hash_person_token(token: str) -> str:
    """The hash of a person's token, as it is stored."""
    return hash_token(token).hex()
