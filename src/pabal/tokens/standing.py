"""How a token stands, asked of the table and of nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.tokens.digest import hashed
from pabal.tokens.mint import PREFIX

Q = beside(__file__)


@dataclass(frozen=True, slots=True)
class Standing:
    """A token that was issued once, and whether it is good now. `now` is the database's time."""

    id: UUID
    family_id: UUID
    service: str
    permissions: Sequence[str]
    created_at: datetime
    ends: datetime
    good: bool
    now: datetime = field(repr=False)


def is_refresh(token: str) -> bool:
    """Our two kinds cannot be taken for each other."""
    return token.startswith(PREFIX)


async def standing(tx: Tx, token: str) -> Standing | None:
    """How this token stands; None when it was never one of ours, or so long ago that nobody remembers."""
    return await tx.maybe(Standing, Q.refresh if is_refresh(token) else Q.access, hash=hashed(token))


async def every(
    tx: Tx,
    *,
    service: str | None = None,
    after: tuple[datetime, UUID] | None = None,
    ended: bool = False,
    limit: int = 50,
) -> list[Standing]:
    """Access tokens, the newest first; those that ended only when asked for."""
    at, row = after or (None, None)
    return await tx.all(Standing, Q.list, service=service, after=at, after_id=row, all=ended, limit=limit)
