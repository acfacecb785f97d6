"""Refusals: the addresses that refuse us, for whoever may have them healed."""

from dataclasses import dataclass
from datetime import datetime

from pabal.db.queries import beside
from pabal.db.tx import Tx

Q = beside(__file__)


@dataclass(frozen=True, slots=True)
class Refusal:
    """An address that takes nothing from us, since when, and what it said."""

    recipient_type: str
    recipient_id: str
    unhealthy_since: datetime
    reason: str


async def newest(tx: Tx, limit: int) -> list[Refusal]:
    """Those that began last."""
    return await tx.all(Refusal, Q.newest, limit=limit)
