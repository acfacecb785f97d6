"""Find access tokens and token families by a short id."""

from uuid import UUID

from pabal.core.short_id import IdPattern
from pabal.db.queries import load_queries
from pabal.db.tx import Tx

Q = load_queries(__file__)


async def match_access_token_ids(tx: Tx, pattern: IdPattern, limit: int) -> list[UUID]:
    return await tx.column(Q.match_access_tokens, **pattern.bounds, limit=limit)


async def match_family_ids(tx: Tx, pattern: IdPattern, limit: int) -> list[UUID]:
    return await tx.column(Q.match_families, **pattern.bounds, limit=limit)
