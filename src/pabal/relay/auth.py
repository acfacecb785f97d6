"""Authenticate session tokens and relay tokens. Both are found by one hash and belong to one account."""

from dataclasses import dataclass
from uuid import UUID

from pabal.core.errors import AccountDisabled, SessionNotPaired, Unauthenticated
from pabal.core.secrets import hash_token
from pabal.db.queries import load_queries
from pabal.db.tx import Tx

Q = load_queries(__file__)


@dataclass(frozen=True, slots=True)
class RelayPrincipal:
    """The owner of a valid token. `token_id` is the session's id, or the account's for its relay token.

    A session has no account before its first pairing. `paired` is whether it has a user now; always true for a relay
    token.
    """

    token_id: UUID
    session_id: UUID | None
    account_id: UUID | None
    rate_limit: int
    paired: bool


@dataclass(frozen=True, slots=True)
class AccountOwner:
    """A principal with an account, as most relay endpoints require."""

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
    """Find the owner of a token.

    Raises Unauthenticated only if the token itself is invalid: clients then discard it.
    """
    return await authenticate_relay_token_hash(tx, hash_relay_secret(token))


async def authenticate_relay_token_hash(tx: Tx, token_hash: str) -> RelayPrincipal:
    """Find the owner of a token by its hash."""
    return principal_of_token(await tx.maybe(RelayTokenRow, Q.find_relay_token, token_hash=token_hash))


def principal_of_token(row: RelayTokenRow | None) -> RelayPrincipal:
    """The owner of a token that was looked up. Raises Unauthenticated or AccountDisabled."""
    if row is None or row.is_invalid:
        raise Unauthenticated("the token is unknown or no longer valid")
    if row.is_disabled:
        raise AccountDisabled
    return RelayPrincipal(row.token_id, row.session_id, row.account_id, row.rate_limit, row.paired)


async def lock_owner_account(tx: Tx, owner: AccountOwner) -> None:
    """Keep an owner's token valid until this transaction ends.

    Call it after the last conversation is locked: conversations are always locked before their account.
    """
    await tx.value(Q.lock_account_shared, account=owner.account_id)


async def verify_owner_token(tx: Tx, owner: AccountOwner, token_hash: str) -> None:
    """Verify an owner's token again under the lock: it may have been revoked while we waited for the lock."""
    principal = await authenticate_relay_token_hash(tx, token_hash)
    if (principal.account_id, principal.token_id) != (owner.account_id, owner.token_id):
        raise Unauthenticated("the token now belongs to another account")


def require_owner(principal: RelayPrincipal) -> AccountOwner:
    if principal.account_id is None:
        raise SessionNotPaired
    return AccountOwner(principal.account_id, principal.token_id, principal.session_id, principal.rate_limit)


def hash_relay_secret(secret: str) -> str:
    """The hash of a token, code or cookie, as the relay's tables store it."""
    return hash_token(secret).hex()
