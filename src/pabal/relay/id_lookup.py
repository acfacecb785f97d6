"""Find accounts and messages by a short id."""

from uuid import UUID

from pabal.core.short_id import IdPattern
from pabal.db.queries import load_queries
from pabal.db.tx import Tx

Q = load_queries(__file__)


async def match_account_ids(tx: Tx, pattern: IdPattern, limit: int) -> list[UUID]:
    return await tx.column(Q.match_accounts, **pattern.bounds, limit=limit)


async def match_message_ids(tx: Tx, pattern: IdPattern, limit: int) -> list[UUID]:
    return await tx.column(Q.match_messages, **pattern.bounds, limit=limit)
