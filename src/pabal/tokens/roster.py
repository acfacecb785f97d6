"""The roster: every service with what lives of its secrets and tokens, for somebody who looks at all of them."""

from dataclasses import dataclass
from datetime import datetime

from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.tokens.families import MANY
from pabal.tokens.services import Service

Q = beside(__file__)


@dataclass(frozen=True, slots=True)
class Enrolled(Service):
    """A service, its live secrets and families, and when it last got a token."""

    secrets: int
    families: int
    last_token_at: datetime | None


async def roster(tx: Tx, *, after: str = "", limit: int = 50) -> list[Enrolled]:
    """Services by their names, from the one after `after`. Families are counted up to MANY."""
    return await tx.all(Enrolled, Q.roster, after=after, many=MANY, limit=limit)
