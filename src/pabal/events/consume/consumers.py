"""Consumers that need attention: those that claim nothing, receivers that fail, and claims by plain SQL."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from pabal.db.queries import load_queries
from pabal.db.tx import Tx

Q = load_queries(__file__)

SILENT_CONSUMER_AFTER = timedelta(minutes=5)
"""A consumer that claims nothing for this long while events are due is silent."""
MAX_LISTED_CONSUMERS = 20


@dataclass(frozen=True, slots=True)
class SilentConsumer:
    """A service whose events are due although none was claimed lately. `claimed_ago` is None if none is known."""

    service: str
    waiting: int
    oldest_due: timedelta
    claimed_ago: timedelta | None


@dataclass(frozen=True, slots=True)
class FailingReceiver:
    """A push subscription that sends nothing: its circuit breaker is open, or a response disabled it."""

    service: str
    state: Literal["open", "disabled"]
    failures: int
    open_until: datetime | None
    disabled_reason: str | None


@dataclass(frozen=True, slots=True)
class PlainClaims:
    """Events that plain SQL set to processing. `oldest` is the age of the oldest claim."""

    count: int
    oldest: timedelta


async def list_silent_consumers(tx: Tx, limit: int = MAX_LISTED_CONSUMERS) -> list[SilentConsumer]:
    """List services whose events wait for a consumer, the longest waiting first."""
    return await tx.all(SilentConsumer, Q.list_silent_consumers, min_age=SILENT_CONSUMER_AFTER, limit=limit)


async def list_failing_receivers(tx: Tx, limit: int = MAX_LISTED_CONSUMERS) -> list[FailingReceiver]:
    return await tx.all(FailingReceiver, Q.list_failing_receivers, limit=limit)


async def count_plain_claims(tx: Tx) -> PlainClaims:
    return await tx.one(PlainClaims, Q.count_plain_claims)
