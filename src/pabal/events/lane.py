"""The event lane: claim, settle, revive and purge rows of public.event_queue."""

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
from pabal.db.stored_json import MAX_RESPONSE_BYTES, decode_jsonb
from pabal.db.tx import Tx
from pabal.events.events import like_patterns
from pabal.queue.lane import Capability, Lane

ORDERING_CONSTRAINT = "event_order_one_at_a_time"
OLDEST_SHARE = 8
"""One in this many claimed events is the longest due, of any priority."""


class ClaimedEvent(msgspec.Struct, frozen=True):
    """An event under a lease. A struct, because a worker creates tens of thousands of them per second."""

    id: UUID
    lease: UUID
    event_type: str
    source_service: str
    target_service: str
    payload_json: str
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
    def payload(self) -> dict[str, Any]:
        """Decoded at each access: pull and push pass the text on."""
        return decode_jsonb(self.payload_json)

    @property
    def attempt(self) -> int:
        return self.retry_count + 1

    @property
    def max_attempts(self) -> int:
        return self.max_retries + 1


@dataclass(frozen=True, slots=True)
class ExpiredLeaseCounts:
    """How many events of expired leases are due again, and how many had no attempt left."""

    due: int
    dead: int


@dataclass(frozen=True, slots=True)
class EventClaimFilter:
    """Due events of one service. The patterns are LIKE patterns of event types; None matches every type."""

    service: str
    patterns: Sequence[str] | None = None
    except_patterns: Sequence[str] = ()


class EventLane(Lane[ClaimedEvent, EventClaimFilter]):
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

    async def claim(
        self, tx: Tx, limit: int, hold: timedelta, holder: str, claim_filter: EventClaimFilter, /
    ) -> list[ClaimedEvent]:
        """Claim due events of one service. If there are none, revive expired leases and try again."""
        service, patterns = claim_filter.service, claim_filter.patterns
        if claim_filter.except_patterns:  # LIKE has no exceptions, so claim the due types by name
            event_types = await tx.column(
                self.q.list_due_event_types,
                service=service,
                patterns=patterns,
                except_patterns=claim_filter.except_patterns,
            )
            if not event_types:
                return []
            patterns = like_patterns(event_types)
        quota = oldest_first_quota(limit, random.random())  # noqa: S311 fairness, not a secret
        parameters = {"service": service, "patterns": patterns, "oldest_quota": quota, "max_bytes": MAX_RESPONSE_BYTES}
        try:
            events = await self.claim_rows(tx, limit, hold, holder, **parameters)
            if not events and await self.revive(tx, limit):
                return await self.claim_rows(tx, limit, hold, holder, **parameters)
        except UniqueViolation as error:
            if error.constraint == ORDERING_CONSTRAINT:
                raise RetryableError("another worker claimed an event with the same ordering key") from error
            raise
        return events

    async def settle_done(self, tx: Tx, items: Sequence[ClaimedEvent]) -> list[UUID]:
        leases = {item.lease for item in items}
        if len(leases) > 1:
            return await tx.column(self.q.settle_done_many_leases, **self.fences(items))
        return await tx.column(self.q.settle_done, ids=[item.id for item in items], lease=leases.pop())

    async def lock_leased(self, tx: Tx, items: Sequence[ClaimedEvent]) -> set[UUID]:
        """Lock the events whose lease still holds, until the transaction ends; return their ids."""
        return {*await tx.column(self.q.lock_leased, **self.fences(items))}

    async def services_with_due_events(self, tx: Tx) -> list[str]:
        """List the services that have due events."""
        return await tx.column(self.q.services_with_due)

    async def due_event_types(self, tx: Tx, service: str) -> list[str]:
        """List the types of a service's due events."""
        return await tx.column(self.q.list_due_event_types, service=service, patterns=["%"], except_patterns=[])

    async def revive(self, tx: Tx, batch: int) -> int:
        counts = await tx.one(ExpiredLeaseCounts, self.q.revive, batch=batch)
        tx.count_outcomes(self.name, "failed", counts.due)
        tx.count_outcomes(self.name, "dead", counts.dead)
        return counts.due + counts.dead

    async def purge(self, tx: Tx, days: int, batch: int) -> int:
        return await tx.value(self.q.purge, days=days, batch=batch)


def oldest_first_quota(limit: int, randomness: float) -> int:
    """How many events of a claim ignore priority: an eighth, on average also for a claim of one.

    `randomness` is in [0, 1).
    """
    whole, rest = divmod(limit, OLDEST_SHARE)
    return whole + (randomness < rest / OLDEST_SHARE)


LANE = EventLane()
