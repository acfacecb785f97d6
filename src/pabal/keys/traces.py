"""What keys leave behind in the database."""

from pabal.db.queries import beside
from pabal.db.tx import Tx

Q = beside(__file__)


async def used(tx: Tx) -> bool:
    """Whether anything here was encrypted or sealed with keys, whichever they were."""
    return await tx.value(Q.used)
