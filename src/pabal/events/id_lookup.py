"""Find events, dead letters and subscriptions by a short id."""

from uuid import UUID

from pabal.core.short_id import IdPattern
from pabal.db.queries import load_queries
from pabal.db.tx import Tx

Q = load_queries(__file__)


async def match_event_ids(tx: Tx, pattern: IdPattern, limit: int) -> list[UUID]:
    return await tx.column(Q.match_events, **pattern.bounds, limit=limit)


async def match_dead_letter_ids(tx: Tx, pattern: IdPattern, limit: int) -> list[UUID]:
    return await tx.column(Q.match_dead_letters, **pattern.bounds, limit=limit)


async def match_subscription_ids(tx: Tx, pattern: IdPattern, limit: int) -> list[UUID]:
    return await tx.column(Q.match_subscriptions, **pattern.bounds, limit=limit)
