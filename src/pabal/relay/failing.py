"""Channels whose callbacks fail: what the operator is told before the users say it."""

from dataclasses import dataclass
from datetime import timedelta

from pabal.db.queries import load_queries
from pabal.db.tx import Tx

Q = load_queries(__file__)

FAILURE_WINDOW = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class FailingChannel:
    """A channel, and how many of its answers did not get through lately."""

    channel: str
    failed: int


async def list_failing_channels(tx: Tx, min_failures: int) -> list[FailingChannel]:
    """Channels with at least so many failed callbacks within the last ten minutes."""
    return await tx.all(FailingChannel, Q.list_failing_channels, span=FAILURE_WINDOW, least=min_failures)
