"""Find notifications and rules by a short id."""

from uuid import UUID

from pabal.core.short_id import IdPattern
from pabal.db.queries import load_queries
from pabal.db.tx import Tx

Q = load_queries(__file__)


async def match_notification_ids(tx: Tx, pattern: IdPattern, limit: int) -> list[UUID]:
    return await tx.column(Q.match_notifications, **pattern.bounds, limit=limit)


async def match_rule_ids(tx: Tx, pattern: IdPattern, limit: int) -> list[UUID]:
    return await tx.column(Q.match_rules, **pattern.bounds, limit=limit)
