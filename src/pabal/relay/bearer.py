"""Whoever comes with a session's token or with an account's relay token: one tenant, found by one hash."""

import hashlib
from dataclasses import dataclass
from uuid import UUID

from pabal.core.errors import AccountDisabled, NotPaired, Unauthenticated
from pabal.db.queries import beside
from pabal.db.tx import Tx

Q = beside(__file__)


@dataclass(frozen=True, slots=True)
class Bearer:
    """Who has shown a good token. `token` names it: the session, or the account for its relay token.

    A session nobody has paired yet has no account. `paired` is what a stream is first told: whether a session has a
    user now. An account with a relay token of its own waits for nobody.
    """

    token: UUID
    session: UUID | None
    account: UUID | None
    rate_limit: int
    paired: bool


@dataclass(frozen=True, slots=True)
class Owner:
    """A bearer who has an account: what most of the relay's doors are for."""

    account: UUID
    token: UUID
    session: UUID | None
    rate_limit: int


@dataclass(frozen=True, slots=True)
class Known:
    token: UUID
    session: UUID | None
    account: UUID | None
    rate_limit: int
    paired: bool
    is_dead: bool
    is_disabled: bool


async def bearer_of(tx: Tx, token: str) -> Bearer:
    """Find whose token this is.

    Unauthenticated only when the token itself is dead: clients throw theirs away when they are told so.
    """
    return await bearer_by(tx, digest(token))


async def bearer_by(tx: Tx, token_hash: str) -> Bearer:
    """The same for a token that was shown before, of which only the hash is kept."""
    known = await tx.maybe(Known, Q.find, token_hash=token_hash)
    if known is None or known.is_dead:
        raise Unauthenticated("this token is not known, or no longer good")
    if known.is_disabled:
        raise AccountDisabled
    return Bearer(known.token, known.session, known.account, known.rate_limit, known.paired)


async def hold(tx: Tx, owner: Owner) -> None:
    """Have nobody end an owner's token until this transaction ends.

    To be asked when nothing more is waited for: after the conversations, which everybody holds before their account.
    """
    await tx.value(Q.hold, account=owner.account)


async def still(tx: Tx, owner: Owner, token_hash: str) -> None:
    """See, while it is held, that an owner's token is still good: they may have waited for whoever ended it."""
    now = await bearer_by(tx, token_hash)
    if (now.account, now.token) != (owner.account, owner.token):
        raise Unauthenticated("this token is somebody else's now")


def owner(bearer: Bearer) -> Owner:
    if bearer.account is None:
        raise NotPaired
    return Owner(bearer.account, bearer.token, bearer.session, bearer.rate_limit)


def digest(secret: str) -> str:
    """SHA-256, plain: what is kept of tokens, which are 256 random bits."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
