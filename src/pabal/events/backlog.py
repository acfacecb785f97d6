"""Backlog: what waits for a receiver that is sent nothing."""

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from pabal.db.queries import load_queries
from pabal.db.tx import Tx

Q = load_queries(__file__)

MIN_BACKLOG_AGE = timedelta(seconds=10)
"""How long an event lies before it counts: it may be on its way."""
MAX_BACKLOG_COUNT = 1000
"""Events that are counted of one subscription."""


@dataclass(frozen=True, slots=True)
class SubscriptionBacklog:
    """How much waits for a subscription that is disabled, paused, or resting because its receiver failed."""

    subscription: UUID
    service: str
    state: str
    count: int


async def list_subscription_backlogs(tx: Tx, limit: int = 20) -> list[SubscriptionBacklog]:
    """Who is sent nothing although something waits for them, and nobody else takes it."""
    return await tx.all(
        SubscriptionBacklog, Q.list_subscription_backlogs, left=MIN_BACKLOG_AGE, most=MAX_BACKLOG_COUNT, limit=limit
    )
