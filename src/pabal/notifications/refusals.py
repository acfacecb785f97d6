"""Refusals: the addresses that refuse us, for whoever may have them healed."""

from dataclasses import dataclass
from datetime import datetime

from pabal.db.queries import load_queries
from pabal.db.tx import Tx

Q = load_queries(__file__)


@dataclass(frozen=True, slots=True)
class UnhealthyAddress:
    """An address that takes nothing from us, since when, and what it said."""

    recipient_type: str
    recipient_id: str
    unhealthy_since: datetime
    reason: str


async def list_unhealthy_addresses(tx: Tx, limit: int) -> list[UnhealthyAddress]:
    """Those that began last."""
    return await tx.all(UnhealthyAddress, Q.list_unhealthy_addresses, limit=limit)
