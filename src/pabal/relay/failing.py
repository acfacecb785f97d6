"""Channels whose callbacks fail: what the operator is told before the users say it."""

from dataclasses import dataclass
from datetime import timedelta

from pabal.db.queries import beside
from pabal.db.tx import Tx

Q = beside(__file__)

SPAN = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class Failing:
    """A channel, and how many of its answers did not get through lately."""

    channel: str
    failed: int


async def failing(tx: Tx, least: int) -> list[Failing]:
    """Channels with at least so many failed callbacks within the last ten minutes."""
    return await tx.all(Failing, Q.failing, span=SPAN, least=least)
