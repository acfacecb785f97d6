"""The event lane."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from pabal.db.channels import Channel
from pabal.db.errors import RetryableError, UniqueViolation
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.queue.lane import Capability, Lane

ORDERING_CONSTRAINT = "event_lines_one_at_a_time"
OLDEST_SHARE = 8
"""One place in eight goes to whatever is longest due, however unurgent."""


class ClaimedEvent(msgspec.Struct, frozen=True):
    """An event handed out under a lease. A struct, because a worker makes tens of thousands of them a second."""

    id: UUID
    lease: UUID
    event_type: str
    source_service: str
    target_service: str
    payload: dict[str, Any]
    priority: int
    retry_count: int
    max_retries: int
    created_at: datetime
    seq: int
    ordering_key: str | None
    correlation_id: str | None
    traceparent: str | None
    origin_id: UUID

    @property
    def attempt(self) -> int:
        return self.retry_count + 1

    @property
    def max_attempts(self) -> int:
        return self.max_retries + 1


@dataclass(frozen=True, slots=True)
class ExpiredLeaseCounts:
    """How many events of ended leases fell due again, and of how many it was the last attempt."""

    due: int
    dead: int


class EventLane(Lane[ClaimedEvent]):
    name = "events"
    channel = Channel.EVENTS
    capabilities = frozenset(
        {
            Capability.DELAY,
            Capability.RETRY,
            Capability.DEAD_LETTER,
            Capability.PRIORITY,
            Capability.ORDER_BY_KEY,
            Capability.EXPIRE,
        }
    )
    q = load_queries(__file__)
    row_type = ClaimedEvent

    async def claim(self, tx: Tx, limit: int, hold: timedelta, holder: str, **claim_filter: Any) -> list[ClaimedEvent]:
        """Take due events of one service; when there are none, look whether somebody's lease has ended.

        With `patterns` (as LIKE has them) only events whose type fits one.
        """
        asked = {"patterns": None, "aged": oldest_first_quota(limit, random.random()), **claim_filter}  # noqa: S311 fairness, not a secret
        try:
            found = await super().claim(tx, limit, hold, holder, **asked)
            if not found and await self.revive(tx, limit):
                return await super().claim(tx, limit, hold, holder, **asked)
        except UniqueViolation as error:
            if error.constraint == ORDERING_CONSTRAINT:
                raise RetryableError("somebody else took from the same line a moment ago") from error
            raise
        return found

    async def settle_done(self, tx: Tx, items: Sequence[ClaimedEvent]) -> list[UUID]:
        leases = {item.lease for item in items}
        if len(leases) > 1:
            return await tx.column(self.q.settle_done_many_leases, **self.fences(items))
        return await tx.column(self.q.settle_done, ids=[item.id for item in items], lease=leases.pop())

    async def lock_leased(self, tx: Tx, items: Sequence[ClaimedEvent]) -> set[UUID]:
        """Lock the events whose lease still holds, until the transaction ends; return their ids."""
        return {*await tx.column(self.q.lock_leased, **self.fences(items))}

    async def services_with_due_events(self, tx: Tx) -> list[str]:
        """Every service that has something due: whom a worker goes round."""
        return await tx.column(self.q.services_with_due)

    async def revive(self, tx: Tx, batch: int) -> int:
        ended = await tx.one(ExpiredLeaseCounts, self.q.revive, batch=batch)
        tx.count_outcomes(self.name, "failed", ended.due)
        tx.count_outcomes(self.name, "dead", ended.dead)
        return ended.due + ended.dead

    async def purge(self, tx: Tx, days: int, batch: int) -> int:
        return await tx.value(self.q.purge, days=days, batch=batch)


def oldest_first_quota(limit: int, chance: float) -> int:
    """How many of a claim's places go to the oldest: an eighth, on average also for a claim of one."""
    whole, rest = divmod(limit, OLDEST_SHARE)
    return whole + (chance < rest / OLDEST_SHARE)


LANE = EventLane()
