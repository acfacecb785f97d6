"""Backlog: what waits for a receiver that is sent nothing."""

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from pabal.db.queries import beside
from pabal.db.tx import Tx

Q = beside(__file__)

LEFT = timedelta(seconds=10)
"""How long an event lies before it counts: it may be on its way."""
MOST = 1000
"""Events that are counted of one subscription."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """How much waits for a subscription that is disabled, paused, or resting because its receiver failed."""

    subscription: UUID
    service: str
    state: str
    count: int


async def backlogs(tx: Tx, limit: int = 20) -> list[Backlog]:
    """Who is sent nothing although something waits for them, and nobody else takes it."""
    return await tx.all(Backlog, Q.backlogs, left=LEFT, most=MOST, limit=limit)
