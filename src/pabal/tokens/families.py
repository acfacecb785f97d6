"""The families of a service that live: which, since when, and when each was last refreshed."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from pabal.core.actor import Actor
from pabal.core.errors import NotFound
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.tokens.revoke import ASKED, family

Q = beside(__file__)

MANY = 1000
"""As far as families are counted to be shown: a service that asks for a token at every call has any number of them."""


@dataclass(frozen=True, slots=True)
class Family:
    """Everything that came of one sign-in, without the tokens."""

    id: UUID
    permissions: Sequence[str]
    created_at: datetime
    expires_at: datetime
    refreshed_at: datetime | None
    refreshes: int
    by: str | None
    client_ip: str | None


async def live(tx: Tx, service: str, *, after: tuple[datetime, UUID] | None = None, limit: int = 20) -> list[Family]:
    """Those that live longest first; `after` where the page before ended."""
    at, row = after or (None, None)
    return await tx.all(Family, Q.live, service=service, after=at, after_id=row, limit=limit)


async def count(tx: Tx, service: str) -> int:
    """How many live, counted up to MANY."""
    return await tx.value(Q.count, service=service, many=MANY)


async def end(tx: Tx, service: str, row: UUID, by: Actor) -> None:
    """End one family of this service."""
    if await tx.value(Q.owner, family=row) != service or not await family(tx, row, ASKED, by):
        raise NotFound(f"there is no live family {row}")
