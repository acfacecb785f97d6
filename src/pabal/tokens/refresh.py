"""Refresh tokens with rotation: a refresh token is used once and replaced by its successor.

A token that is presented again was stolen, or the response to its first use was lost. For thirty seconds, while the
successor is unused, a lost response is assumed and repeated. After that the whole family is revoked, because the thief
cannot be distinguished from the owner.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from pabal.core.actor import Actor
from pabal.core.errors import InvalidGrant
from pabal.core.ids import new_id
from pabal.core.secrets import hash_token
from pabal.db.doorbell.channels import Channel
from pabal.db.errors import RetryableError
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.tokens import revoke
from pabal.tokens.issuer import TokenIssuer, TokenPair
from pabal.tokens.permission import grant_permissions
from pabal.tokens.revoke import lock_family, revoke_family

Q = load_queries(__file__)

LOST_RESPONSE_WINDOW = timedelta(seconds=30)
MIN_FAMILY_LIFETIME = timedelta(seconds=1)
"""A family with less time left gets no new token."""
MAX_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class RefreshTokenRow:
    """The state of a refresh token. Its successor was created at `spent_at`."""

    id: UUID
    family_id: UUID
    revoked_at: datetime | None
    expires_at: datetime
    replaced_by: UUID | None
    permissions: Sequence[str]
    family_revoked_at: datetime | None
    family_expires_at: datetime
    service_permissions: Sequence[str]
    is_active: bool
    spent_at: datetime | None
    successor_use_count: int | None
    successor_revoked_at: datetime | None
    now: datetime


@dataclass(frozen=True, slots=True)
class RotateToken:
    """The token is valid: replace it."""


@dataclass(frozen=True, slots=True)
class RepeatResponse:
    """The token was just used and the response may have been lost: repeat the response."""


@dataclass(frozen=True, slots=True)
class ReuseDetected:
    """The token was used before: revoke the family."""


@dataclass(frozen=True, slots=True)
class RejectToken:
    """The token is not valid. The client gets `reason`."""

    reason: str


RefreshDecision = RotateToken | RepeatResponse | ReuseDetected | RejectToken


@dataclass(frozen=True, slots=True)
class RepeatedTokens:
    refresh_id: UUID
    refresh_token: str = field(repr=False)
    access_id: UUID
    access_token: str = field(repr=False)
    permissions: Sequence[str]
    expires_at: datetime
    now: datetime


def decide_refresh(token: RefreshTokenRow) -> RefreshDecision:
    """Decide what to do with a refresh token that a client presents."""
    if token.family_revoked_at is not None:
        return RejectToken("the refresh token was revoked")
    if token.family_expires_at <= token.now + MIN_FAMILY_LIFETIME or not token.is_active:
        return RejectToken("the refresh token has expired")
    if token.replaced_by is not None:
        lost = token.spent_at is not None and token.now - token.spent_at <= LOST_RESPONSE_WINDOW
        unused = token.successor_use_count == 0 and token.successor_revoked_at is None
        return RepeatResponse() if lost and unused else ReuseDetected()
    if token.revoked_at is not None:
        return RejectToken("the refresh token was revoked")
    if token.expires_at <= token.now:
        return RejectToken("the refresh token has expired")
    return RotateToken()


async def refresh_tokens(
    tx: Tx, issuer: TokenIssuer, service: str, token: str, *, requested: Sequence[str], actor: Actor
) -> TokenPair | InvalidGrant:
    """Exchange a refresh token for a new pair.

    InvalidGrant is returned and not raised, because the revocation of a family must be committed.
    """
    for _ in range(MAX_ATTEMPTS):
        row = await tx.maybe(RefreshTokenRow, Q.find_refresh_token, hash=hash_token(token).hex(), service=service)
        if row is None:
            return InvalidGrant("unknown refresh token")
        match decide_refresh(row):
            case RotateToken():
                pair = await _rotate_token(tx, issuer, service, row, requested=requested, actor=actor)
            case RepeatResponse():
                pair = await _repeat_response(tx, issuer, service, token, row, actor)
            case ReuseDetected():
                if await revoke_family(tx, row.family_id, revoke.REFRESH_TOKEN_REUSED, actor):
                    return InvalidGrant("the refresh token was already used; all tokens of its family are revoked")
                pair = None
            case RejectToken(reason):
                return InvalidGrant(reason)
        if pair is not None:
            return pair  # otherwise a concurrent request changed the family: decide again
    raise RetryableError("concurrent requests keep changing this token family")


async def _rotate_token(
    tx: Tx, issuer: TokenIssuer, service: str, current: RefreshTokenRow, *, requested: Sequence[str], actor: Actor
) -> TokenPair | None:
    # Without the permissions that the service has lost since the grant.
    allowed = grant_permissions(current.permissions, current.service_permissions)
    permissions = grant_permissions(requested, allowed)
    access = issuer.create_access_token(
        service, permissions, current.family_id, now=current.now, latest_expiry=current.family_expires_at
    )
    successor = issuer.create_refresh_token(now=current.now, latest_expiry=current.family_expires_at)
    token_id = await tx.value(
        Q.rotate_refresh_token,
        family=current.family_id,
        spent=current.id,
        permissions=permissions,
        access_id=access.id,
        access=access.envelope,
        access_hash=access.token_hash,
        access_ends=access.expires_at,
        refresh_id=successor.id,
        refresh=successor.envelope,
        refresh_hash=successor.token_hash,
        refresh_ends=successor.expires_at,
        event=new_id(),
        actor=actor.name,
        client_ip=actor.client_ip,
        user_agent=actor.user_agent,
        request_id=actor.request_id,
    )
    if token_id is None:
        return None
    tx.notify(Channel.EVENTS)
    lifetime = access.expires_at - current.now
    return TokenPair(current.family_id, access.token, successor.token, permissions, lifetime)


async def _repeat_response(
    tx: Tx, issuer: TokenIssuer, service: str, token: str, current: RefreshTokenRow, actor: Actor
) -> TokenPair | None:
    """Repeat the response, if the decision is the same once the family is locked."""
    await lock_family(tx, current.family_id)
    latest = await tx.maybe(RefreshTokenRow, Q.find_refresh_token, hash=hash_token(token).hex(), service=service)
    if latest is None or decide_refresh(latest) != RepeatResponse():
        return None
    tokens = await tx.one(
        RepeatedTokens,
        Q.repeat_response,
        spent=current.id,
        actor=actor.name,
        client_ip=actor.client_ip,
        request_id=actor.request_id,
    )
    return TokenPair(
        current.family_id,
        issuer.decrypt_access_token(tokens.access_id, tokens.access_token),
        issuer.decrypt_refresh_token(tokens.refresh_id, tokens.refresh_token),
        tuple(tokens.permissions),
        tokens.expires_at - tokens.now,
    )
