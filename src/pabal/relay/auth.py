"""Whoever comes with a session's token or with an account's relay token: one tenant, found by one hash."""

from dataclasses import dataclass
from uuid import UUID

from pabal.core.errors import AccountDisabled, SessionNotPaired, Unauthenticated
from pabal.core.secrets import hash_token
from pabal.db.queries import load_queries
from pabal.db.tx import Tx

Q = load_queries(__file__)


@dataclass(frozen=True, slots=True)
class RelayPrincipal:
    """Who has shown a good token. `token` names it: the session, or the account for its relay token.

    A session nobody has paired yet has no account. `paired` is what a stream is first told: whether a session has a
    user now. An account with a relay token of its own waits for nobody.
    """

    token_id: UUID
    session_id: UUID | None
    account_id: UUID | None
    rate_limit: int
    paired: bool


@dataclass(frozen=True, slots=True)
class AccountOwner:
    """A bearer who has an account: what most of the relay's doors are for."""

    account_id: UUID
    token_id: UUID
    session_id: UUID | None
    rate_limit: int


@dataclass(frozen=True, slots=True)
class RelayTokenRow:
    token_id: UUID
    session_id: UUID | None
    account_id: UUID | None
    rate_limit: int
    paired: bool
    is_invalid: bool
    is_disabled: bool


async def authenticate_relay_token(tx: Tx, token: str) -> RelayPrincipal:
    """Find whose token this is.

    Unauthenticated only when the token itself is dead: clients throw theirs away when they are told so.
    """
    return await authenticate_relay_token_hash(tx, hash_relay_secret(token))


async def authenticate_relay_token_hash(tx: Tx, token_hash: str) -> RelayPrincipal:
    """The same for a token that was shown before, of which only the hash is kept."""
    known = await tx.maybe(RelayTokenRow, Q.find_relay_token, token_hash=token_hash)
    if known is None or known.is_invalid:
        raise Unauthenticated("this token is not known, or no longer good")
    if known.is_disabled:
        raise AccountDisabled
    return RelayPrincipal(known.token_id, known.session_id, known.account_id, known.rate_limit, known.paired)


async def lock_owner_account(tx: Tx, owner: AccountOwner) -> None:
    """Have nobody end an owner's token until this transaction ends.

    To be asked when nothing more is waited for: after the conversations, which everybody holds before their account.
    """
    await tx.value(Q.lock_account_shared, account=owner.account_id)


async def verify_owner_token(tx: Tx, owner: AccountOwner, token_hash: str) -> None:
    """See, while it is held, that an owner's token is still good: they may have waited for whoever ended it."""
    now = await authenticate_relay_token_hash(tx, token_hash)
    if (now.account_id, now.token_id) != (owner.account_id, owner.token_id):
        raise Unauthenticated("this token is somebody else's now")


def require_owner(principal: RelayPrincipal) -> AccountOwner:
    if principal.account_id is None:
        raise SessionNotPaired
    return AccountOwner(principal.account_id, principal.token_id, principal.session_id, principal.rate_limit)


def hash_relay_secret(secret: str) -> str:
    """The hash of a token, code or cookie, as the relay's tables store it."""
    return hash_token(secret).hex()
