"""Explain: all that can be said against a token, for a person who asks why. Doors only ask whether: `standing`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import msgspec

from pabal.core.actor import Actor
from pabal.core.errors import InvalidToken, NotFound
from pabal.core.secrets import decode_base64url, hash_secret
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.keys.keyring import KeyRing
from pabal.tokens import access
from pabal.tokens.access import TokenClaims, TokenHeader, TokenIssuer, decode_access_token
from pabal.tokens.revoke import REVOKED_ON_REQUEST, revoke_family
from pabal.tokens.verify import is_refresh_token

Q = load_queries(__file__)


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """A token that was issued once, with what became of it, of its family and of its service."""

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
    """What is known of a token, and why it is not good; nothing against it means that it is."""

    token: IssuedToken | None
    claims: TokenClaims | None
    problems: tuple[str, ...]

    @property
    def is_valid(self) -> bool:
        return not self.problems


async def inspect_token(tx: Tx, issuer: TokenIssuer, token: str) -> TokenInspection:
    """Hold a token against our keys and against its row."""
    if is_refresh_token(token):
        issued = await tx.maybe(IssuedToken, Q.find_issued_refresh_token, hash=hash_secret(token))
        return TokenInspection(
            issued, None, tuple(find_token_problems(issued)) if issued else ("it is not known here",)
        )
    issued = await tx.maybe(IssuedToken, Q.find_issued_access_token, hash=hash_secret(token))
    claims, faults = check_signature(issuer, token)
    if issued:
        faults = (*faults, *find_token_problems(issued))
    elif claims:
        faults = (*faults, "it was signed here, but its row is gone: it ended long ago, or in another database")
    return TokenInspection(issued, claims, faults)


def find_token_problems(token: IssuedToken) -> Iterator[str]:
    """What the tables say against it. A token the sweep has marked is told as what it is: expired."""
    if token.family_revoked_at:
        yield f"its family was ended at {format_utc_time(token.family_revoked_at)}: {token.family_revoked_reason or 'nobody said why'}"  # noqa: E501
    elif token.is_spent:
        yield "it was used before, and another took its place"
    elif token.revoked_at and token.revoked_at < token.effective_expiry:
        yield f"it was revoked at {format_utc_time(token.revoked_at)}: {token.revoked_reason or 'nobody said why'}"
    if token.effective_expiry <= token.now:
        yield f"it expired at {format_utc_time(token.effective_expiry)}"
    if token.disabled_at:
        yield f"its service {token.service} is disabled since {format_utc_time(token.disabled_at)}"


def check_signature(issuer: TokenIssuer, token: str) -> tuple[TokenClaims | None, tuple[str, ...]]:
    """The claims, if they can be believed, and what speaks against the signature."""
    try:
        return decode_access_token(issuer.key_ring, token, issuer.audience), ()
    except InvalidToken as error:
        return None, (
            describe_bad_signature(issuer.key_ring, token) if str(error) == access.UNREADABLE_JWT else str(error),
        )


def describe_bad_signature(key_ring: KeyRing, token: str) -> str:
    try:
        header = msgspec.json.decode(decode_base64url(token.partition(".")[0]), type=TokenHeader)
    except ValueError:
        return "it is not one of our tokens"
    if key_ring.find(header.kid) is None:
        return "it was signed with a key that is not here"
    return "its signature is not ours: it was changed on the way, or made up"


def format_utc_time(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S %Z}"


MAX_COUNTED_FAMILIES = 1000
"""As far as families are counted to be shown: a service that asks for a token at every call has any number of them."""


@dataclass(frozen=True, slots=True)
class TokenFamily:
    """Everything that came of one sign-in, without the tokens."""

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
    """Those that live longest first; `after` where the page before ended."""
    at, row = after or (None, None)
    return await tx.all(TokenFamily, Q.list_live_families, service=service, after=at, after_id=row, limit=limit)


async def count_live_families_capped(tx: Tx, service: str) -> int:
    """How many live, counted up to MANY."""
    return await tx.value(Q.count_live_families_capped, service=service, many=MAX_COUNTED_FAMILIES)


async def revoke_service_family(tx: Tx, service: str, family_id: UUID, actor: Actor) -> None:
    """End one family of this service."""
    if await tx.value(Q.find_family_service, family=family_id) != service or not await revoke_family(
        tx, family_id, REVOKED_ON_REQUEST, actor
    ):
        raise NotFound(f"there is no live family {family_id}")
