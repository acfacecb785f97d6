"""Whether the relay has been used: what the console's first page shows."""

from dataclasses import dataclass

from pabal.db.queries import load_queries
from pabal.db.tx import Tx

Q = load_queries(__file__)


@dataclass(frozen=True, slots=True)
class RelayProgress:
    """Kakao called the hub; a user is paired with a bot; a bot replied."""

    has_user: bool
    has_pairing: bool
    has_reply: bool


async def read_relay_progress(tx: Tx) -> RelayProgress:
    return await tx.one(RelayProgress, Q.relay_progress)


async def is_relay_used(tx: Tx) -> bool:
    """Whether Kakao called the hub."""
    return await tx.value(Q.relay_is_used)
