"""What keys leave behind in the database."""

from pabal.db.queries import load_queries
from pabal.db.tx import Tx

Q = load_queries(__file__)


async def database_uses_keys(tx: Tx) -> bool:
    """Whether anything here was encrypted or sealed with keys, whichever they were."""
    return await tx.value(Q.database_uses_keys)
