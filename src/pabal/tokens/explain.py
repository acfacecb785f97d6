"""Explain to an operator why a token is not valid. Endpoints use `verify` instead."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import msgspec

from pabal.core.actor import Actor
from pabal.core.errors import InvalidToken, NotFound
from pabal.core.secrets import decode_base64url, hash_token
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.keys.keyring import KeyRing
from pabal.tokens.issuer import UNREADABLE_JWT, TokenClaims, TokenHeader, TokenIssuer, decode_access_token
from pabal.tokens.revoke import REVOKED_ON_REQUEST, revoke_family
from pabal.tokens.verify import is_refresh_token

Q = load_queries(__file__)


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """An issued token with the state of its family and service."""

    id: UUID
    family_id: UUID
    service: str
    permissions: Sequence[str]
    created_at: datetime
    expires_at: datetime
    revoked_at: datetime | None
    revoked_reason: str | None
    is_spent: bool
    family_expires_at: datetime
    family_revoked_at: datetime | None
    family_revoked_reason: str | None
    disabled_at: datetime | None
    now: datetime

    @property
    def effective_expiry(self) -> datetime:
        return min(self.expires_at, self.family_expires_at)


@dataclass(frozen=True, slots=True)
class TokenInspection:
    """What is known about a token, and the reasons why it is not valid."""

    token: IssuedToken | None
    claims: TokenClaims | None
    problems: tuple[str, ...]

    @property
    def is_valid(self) -> bool:
        return not self.problems


async def inspect_token(tx: Tx, issuer: TokenIssuer, token: str) -> TokenInspection:
    """Check a token against the keys and its row."""
    if is_refresh_token(token):
        issued = await tx.maybe(IssuedToken, Q.find_issued_refresh_token, hash=hash_token(token).hex())
        return TokenInspection(
            issued, None, tuple(find_token_problems(issued)) if issued else ("it is an unknown refresh token",)
        )
    issued = await tx.maybe(IssuedToken, Q.find_issued_access_token, hash=hash_token(token).hex())
    claims, problems = check_signature(issuer, token)
    if issued:
        problems = (*problems, *find_token_problems(issued))
    elif claims:
        problems = (
            *problems,
            "it was signed by this hub, but is not in this database: purged, or from another one",
        )
    return TokenInspection(issued, claims, problems)


def find_token_problems(token: IssuedToken) -> Iterator[str]:
    """The problems that the tables show. A token that the chore marked as revoked at its expiry counts as expired."""
    if token.family_revoked_at:
        reason = token.family_revoked_reason or "no reason given"
        yield f"its family was revoked at {format_utc_time(token.family_revoked_at)}: {reason}"
    elif token.is_spent:
        yield "it was already used and replaced by a new one"
    elif token.revoked_at and token.revoked_at < token.effective_expiry:
        yield f"it was revoked at {format_utc_time(token.revoked_at)}: {token.revoked_reason or 'no reason given'}"
    if token.effective_expiry <= token.now:
        yield f"it expired at {format_utc_time(token.effective_expiry)}"
    if token.disabled_at:
        yield f"its service {token.service} was disabled at {format_utc_time(token.disabled_at)}"


def check_signature(issuer: TokenIssuer, token: str) -> tuple[TokenClaims | None, tuple[str, ...]]:
    """The claims, if the signature is valid, and the problems of the signature."""
    try:
        return decode_access_token(issuer.key_ring, token, issuer.audience), ()
    except InvalidToken as error:
        return None, (describe_bad_signature(issuer.key_ring, token) if str(error) == UNREADABLE_JWT else str(error),)


def describe_bad_signature(key_ring: KeyRing, token: str) -> str:
    try:
        header = msgspec.json.decode(decode_base64url(token.partition(".")[0]), type=TokenHeader)
    except ValueError:
        return "it is not a token of this hub"
    if key_ring.find(header.kid) is None:
        return "it was signed with an unknown key"
    return "its signature is invalid"


def format_utc_time(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S %Z}"


MAX_COUNTED_FAMILIES = 1000
"""Families are counted up to this number: a service that requests a token for every call has very many."""


@dataclass(frozen=True, slots=True)
class TokenFamily:
    """The tokens that descend from one grant, without the tokens themselves."""

    id: UUID
    permissions: Sequence[str]
    created_at: datetime
    expires_at: datetime
    refreshed_at: datetime | None
    refresh_count: int
    by: str | None
    client_ip: str | None


async def list_live_families(
    tx: Tx, service: str, *, after: tuple[datetime, UUID] | None = None, limit: int = 20
) -> list[TokenFamily]:
    """Live families, latest expiry first. `after` is the expiry and id of the previous page's last row."""
    expires_at, row_id = after or (None, None)
    return await tx.all(
        TokenFamily, Q.list_live_families, service=service, after=expires_at, after_id=row_id, limit=limit
    )


async def count_live_families_capped(tx: Tx, service: str) -> int:
    """The number of live families, counted up to MAX_COUNTED_FAMILIES."""
    return await tx.value(Q.count_live_families_capped, service=service, limit=MAX_COUNTED_FAMILIES)


async def revoke_service_family(tx: Tx, service: str, family_id: UUID, actor: Actor) -> None:
    """Revoke one family of this service."""
    if await tx.value(Q.find_family_service, family=family_id) != service or not await revoke_family(
        tx, family_id, REVOKED_ON_REQUEST, actor
    ):
        raise NotFound(f"No such token family: {family_id}")
