"""Consumers that need attention: those that claim nothing, receivers that fail, and claims by plain SQL."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.events.events import MAX_BACKLOG_COUNT

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
    is_active: bool


@dataclass(frozen=True, slots=True)
class BlockedKey:
    """An ordering key whose first event waits for its next try. `blocked_for` is the age of the first one behind it."""

    service: str
    ordering_key: str
    event_id: UUID
    next_try: timedelta
    blocked_for: timedelta
    waiting: int


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


async def list_blocked_keys(tx: Tx, limit: int = MAX_LISTED_CONSUMERS) -> list[BlockedKey]:
    """List ordering keys that wait for the retry of their first event, the latest next try first."""
    return await tx.all(BlockedKey, Q.list_blocked_keys, limit=limit, max_count=MAX_BACKLOG_COUNT)


async def count_plain_claims(tx: Tx) -> PlainClaims:
    return await tx.one(PlainClaims, Q.count_plain_claims)
