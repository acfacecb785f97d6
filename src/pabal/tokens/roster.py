"""The roster: every service with what lives of its secrets and tokens, for somebody who looks at all of them."""

from dataclasses import dataclass
from datetime import datetime

from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.tokens.families import MAX_COUNTED_FAMILIES
from pabal.tokens.services import Service

Q = load_queries(__file__)


@dataclass(frozen=True, slots=True)
class ServiceSummary(Service):
    """A service, its live secrets and families, and when it last got a token."""

    live_secret_count: int
    live_family_count: int
    last_token_at: datetime | None


async def list_service_summaries(tx: Tx, *, after: str = "", limit: int = 50) -> list[ServiceSummary]:
    """Services by their names, from the one after `after`. Families are counted up to MANY."""
    return await tx.all(ServiceSummary, Q.list_service_summaries, after=after, many=MAX_COUNTED_FAMILIES, limit=limit)
