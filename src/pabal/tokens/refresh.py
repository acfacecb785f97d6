"""Refresh: a refresh token is used once and names its successor.

A token that comes back after it was spent was stolen, or its answer was lost on the way. For thirty seconds, and as
long as nobody has used the successor, it is taken for lost and the same answer is given again; after that the whole
family ends, since nobody can say which of the two holders is the thief.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from pabal.core.actor import Actor
from pabal.core.errors import InvalidGrant
from pabal.core.ids import new_id
from pabal.core.secrets import hash_secret
from pabal.db.channels import Channel
from pabal.db.errors import RetryableError
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.tokens import revoke
from pabal.tokens.access import TokenIssuer, TokenPair
from pabal.tokens.permission import grant_permissions
from pabal.tokens.revoke import lock_family, revoke_family

Q = load_queries(__file__)

LOST_RESPONSE_WINDOW = timedelta(seconds=30)
MIN_FAMILY_LIFETIME = timedelta(seconds=1)
"""What is left of a family's life when it is not worth a token any more."""
MAX_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class RefreshTokenRow:
    """A refresh token as it stands; the `next_` fields are its successor's, which was made when it was spent."""

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
    """It is good: spend it."""


@dataclass(frozen=True, slots=True)
class RepeatResponse:
    """It was just spent and the answer may have been lost: give the same one."""


@dataclass(frozen=True, slots=True)
class ReuseDetected:
    """It was spent, and somebody has it still: end the family."""


@dataclass(frozen=True, slots=True)
class RejectToken:
    """It is good for nothing. `why` is what the client is told."""

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
    """What becomes of a refresh token that somebody brings."""
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
    """Spend a refresh token for a new pair, or say why not.

    The refusal is given back, not raised: ending a family must be committed together with it.
    """
    for _ in range(MAX_ATTEMPTS):
        held = await tx.maybe(RefreshTokenRow, Q.find_refresh_token, hash=hash_secret(token), service=service)
        if held is None:
            return InvalidGrant("the refresh token is not known")
        match decide_refresh(held):
            case RotateToken():
                pair = await _rotate_token(tx, issuer, service, held, requested=requested, actor=actor)
            case RepeatResponse():
                pair = await _repeat_response(tx, issuer, service, token, held, actor)
            case ReuseDetected():
                if await revoke_family(tx, held.family_id, revoke.REFRESH_TOKEN_REUSED, actor):
                    return InvalidGrant("the refresh token was used before; all tokens that came from it are revoked")
                pair = None
            case RejectToken(why):
                return InvalidGrant(why)
        if pair is not None:
            return pair  # otherwise somebody was quicker: look again at what they left
    raise RetryableError("others keep changing this family")


async def _rotate_token(
    tx: Tx, issuer: TokenIssuer, service: str, current: RefreshTokenRow, *, requested: Sequence[str], actor: Actor
) -> TokenPair | None:
    allowed = grant_permissions(
        current.permissions, current.service_permissions
    )  # what the service lost since is lost here too
    permissions = grant_permissions(requested, allowed)
    access = issuer.create_access_token(
        service, permissions, current.family_id, now=current.now, latest_expiry=current.family_expires_at
    )
    successor = issuer.create_refresh_token(now=current.now, latest_expiry=current.family_expires_at)
    done = await tx.value(
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
    if done is None:
        return None
    tx.notify(Channel.EVENTS)
    return TokenPair(current.family_id, access.token, successor.token, permissions, access.expires_at - current.now)


async def _repeat_response(
    tx: Tx, issuer: TokenIssuer, service: str, token: str, current: RefreshTokenRow, actor: Actor
) -> TokenPair | None:
    """Give the same answer, if it is still true once nobody can change the family any more."""
    await lock_family(tx, current.family_id)
    now = await tx.maybe(RefreshTokenRow, Q.find_refresh_token, hash=hash_secret(token), service=service)
    if now is None or decide_refresh(now) != RepeatResponse():
        return None
    given = await tx.one(
        RepeatedTokens,
        Q.repeat_response,
        spent=current.id,
        actor=actor.name,
        client_ip=actor.client_ip,
        request_id=actor.request_id,
    )
    return TokenPair(
        current.family_id,
        issuer.decrypt_access_token(given.access_id, given.access_token),
        issuer.decrypt_refresh_token(given.refresh_id, given.refresh_token),
        tuple(given.permissions),
        given.expires_at - given.now,
    )
