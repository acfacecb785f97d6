"""Explain: all that can be said against a token, for a person who asks why. Doors only ask whether: `standing`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import msgspec

from pabal.core.base64url import decoded
from pabal.core.errors import BadToken
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.keys.ring import Ring
from pabal.tokens import jwt
from pabal.tokens.digest import hashed
from pabal.tokens.jwt import Claims
from pabal.tokens.mint import Mint
from pabal.tokens.standing import is_refresh

Q = beside(__file__)


@dataclass(frozen=True, slots=True)
class Issued:
    """A token that was issued once, with what became of it, of its family and of its service."""

    id: UUID
    family_id: UUID
    service: str
    permissions: Sequence[str]
    created_at: datetime
    expires_at: datetime
    revoked_at: datetime | None
    revoked_reason: str | None
    spent: bool
    family_ends: datetime
    family_revoked_at: datetime | None
    family_reason: str | None
    disabled_at: datetime | None
    now: datetime

    @property
    def ends(self) -> datetime:
        return min(self.expires_at, self.family_ends)


@dataclass(frozen=True, slots=True)
class Explanation:
    """What is known of a token, and why it is not good; nothing against it means that it is."""

    issued: Issued | None
    claims: Claims | None
    why: tuple[str, ...]

    @property
    def good(self) -> bool:
        return not self.why


async def explain(tx: Tx, mint: Mint, token: str) -> Explanation:
    """Hold a token against our keys and against its row."""
    if is_refresh(token):
        issued = await tx.maybe(Issued, Q.refresh, hash=hashed(token))
        return Explanation(issued, None, tuple(against(issued)) if issued else ("it is not known here",))
    issued = await tx.maybe(Issued, Q.access, hash=hashed(token))
    claims, faults = signed(mint, token)
    if issued:
        faults = (*faults, *against(issued))
    elif claims:
        faults = (*faults, "it was signed here, but its row is gone: it ended long ago, or in another database")
    return Explanation(issued, claims, faults)


def against(token: Issued) -> Iterator[str]:
    """What the tables say against it. A token the sweep has marked is told as what it is: expired."""
    if token.family_revoked_at:
        yield f"its family was ended at {at(token.family_revoked_at)}: {token.family_reason or 'nobody said why'}"
    elif token.spent:
        yield "it was used before, and another took its place"
    elif token.revoked_at and token.revoked_at < token.ends:
        yield f"it was revoked at {at(token.revoked_at)}: {token.revoked_reason or 'nobody said why'}"
    if token.ends <= token.now:
        yield f"it expired at {at(token.ends)}"
    if token.disabled_at:
        yield f"its service {token.service} is disabled since {at(token.disabled_at)}"


def signed(mint: Mint, token: str) -> tuple[Claims | None, tuple[str, ...]]:
    """The claims, if they can be believed, and what speaks against the signature."""
    try:
        return jwt.read(mint.ring, token, mint.audience), ()
    except BadToken as error:
        return None, (unsigned(mint.ring, token) if str(error) == jwt.CANNOT_READ else str(error),)


def unsigned(ring: Ring, token: str) -> str:
    try:
        header = msgspec.json.decode(decoded(token.partition(".")[0]), type=jwt.Header)
    except ValueError:
        return "it is not one of our tokens"
    if ring.find(header.kid) is None:
        return "it was signed with a key that is not here"
    return "its signature is not ours: it was changed on the way, or made up"


def at(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S %Z}"
