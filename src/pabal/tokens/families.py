"""The families of a service that live: which, since when, and when each was last refreshed."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from pabal.core.actor import Actor
from pabal.core.errors import NotFound
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.tokens.revoke import REVOKED_ON_REQUEST, revoke_family

Q = load_queries(__file__)

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
