"""The event lane: claim, settle, revive and purge rows of public.event_queue."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from pabal.db.doorbell.channels import Channel
from pabal.db.errors import RetryableError, UniqueViolation
from pabal.db.queries import load_queries
from pabal.db.stored_json import MAX_RESPONSE_BYTES, decode_jsonb
from pabal.db.tx import Tx
from pabal.queue.lane import Capability, ClaimedRow, ClaimedRows, ClaimRequest, Lane

ORDERING_CONSTRAINT = "event_order_one_at_a_time"
MAX_BYTES_PER_CHAR = 4
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
class PurgedEvents:
    """How many events a batch has deleted, and when the last of them was created."""

    count: int
    last_created_at: datetime | None


@dataclass(frozen=True, slots=True)
class EventClaimFilter:
    """Due events of one service. The patterns are LIKE patterns of event types; None matches every type.

    With a program, nothing matches while its handlers are paused or the service is inactive.
    """

    service: str
    patterns: Sequence[str] | None = None
    except_patterns: Sequence[str] = ()
    program: str | None = None


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
        requests = [ClaimRequest(claim_filter, limit)]
        claimed = await self.claim_many(tx, requests, limit, hold, holder)
        if not claimed.items and await self.revive(tx, limit):
            claimed = await self.claim_many(tx, requests, limit, hold, holder)
        return claimed.items

    async def claim_many(
        self, tx: Tx, requests: Sequence[ClaimRequest[EventClaimFilter]], limit: int, hold: timedelta, holder: str, /
    ) -> ClaimedRows[ClaimedEvent]:
        """Claim for all requests in one statement, under one lease."""
        try:
            events = await self.claim_rows(
                tx, limit, hold, holder, max_bytes=MAX_RESPONSE_BYTES, **claim_columns(requests)
            )
        except UniqueViolation as error:
            if error.constraint == ORDERING_CONSTRAINT:
                raise RetryableError("another worker claimed an event with the same ordering key") from error
            raise
        return ClaimedRows(events, requests_with_more(requests, events, limit))

    def topic(self, item: ClaimedRow) -> str:
        return getattr(item, "target_service", "")

    async def settle_done(self, tx: Tx, items: Sequence[ClaimedEvent]) -> list[UUID]:
        leases = {item.lease for item in items}
        if len(leases) > 1:
            return await tx.column(self.q.settle_done_many_leases, **self.fences(items))
        return await tx.column(self.q.settle_done, ids=[item.id for item in items], lease=leases.pop())

    async def lock_leased(self, tx: Tx, items: Sequence[ClaimedEvent]) -> set[UUID]:
        """Lock the events whose lease still holds, until the transaction ends; return their ids."""
        return {*await tx.column(self.q.lock_leased, **self.fences(items))}

    async def services_with_due_events(self, tx: Tx, services: Sequence[str]) -> list[str]:
        """List those of the services that have due events."""
        return await tx.column(self.q.services_with_due, services=services)

    async def due_event_types(self, tx: Tx, service: str) -> list[str]:
        """List the types of a service's due events."""
        return await tx.column(self.q.list_due_event_types, service=service)

    async def revive(self, tx: Tx, batch: int) -> int:
        counts = await tx.one(ExpiredLeaseCounts, self.q.revive, batch=batch)
        tx.count_outcomes(self.name, "failed", counts.due)
        tx.count_outcomes(self.name, "dead", counts.dead)
        return counts.due + counts.dead

    async def purge(self, tx: Tx, days: int, batch: int) -> int:
        return (await self.purge_after(tx, days, batch, None)).count

    async def purge_after(self, tx: Tx, days: int, batch: int, after: datetime | None) -> PurgedEvents:
        """Delete events that were created at that time or later and ended more than `days` ago, the oldest first."""
        return await tx.one(PurgedEvents, self.q.purge, days=days, batch=batch, after=after)


def claim_columns(requests: Sequence[ClaimRequest[EventClaimFilter]]) -> dict[str, list[Any]]:
    """The requests as arguments of the claim statement."""
    filters = [request.claim_filter for request in requests]
    return {
        "services": [claim_filter.service for claim_filter in filters],
        "patterns": [join_patterns(claim_filter.patterns) for claim_filter in filters],
        "except_patterns": [join_patterns(claim_filter.except_patterns or None) for claim_filter in filters],
        "programs": [claim_filter.program for claim_filter in filters],
        "limits": [request.limit for request in requests],
        "oldest_quotas": [
            oldest_first_quota(request.limit, random.random())  # noqa: S311 fairness, not a secret
            for request in requests
        ],
    }


def join_patterns(patterns: Sequence[str] | None) -> str | None:
    """Patterns of one request as one text: a column of the claim cannot hold arrays of different lengths."""
    return None if patterns is None else " ".join(patterns)


def requests_with_more(
    requests: Sequence[ClaimRequest[EventClaimFilter]], events: Sequence[ClaimedEvent], limit: int
) -> list[bool]:
    """Whether more events may be due for each request: it got as many as it asked for, or the claim reached a limit.

    Events are counted by service: if a service has several requests, each of them may have got all of its events.
    """
    if MAX_BYTES_PER_CHAR * sum(len(event.payload_json) for event in events) >= MAX_RESPONSE_BYTES:
        return [True] * len(requests)
    if len(requests) == 1 or len(events) >= limit:
        return [len(events) >= min(limit, request.limit) for request in requests]
    counts = Counter(event.target_service for event in events)
    return [counts[request.claim_filter.service] >= request.limit for request in requests]


def oldest_first_quota(limit: int, randomness: float) -> int:
    """How many events of a claim ignore priority: an eighth, on average also for a claim of one.

    `randomness` is in [0, 1).
    """
    whole, rest = divmod(limit, OLDEST_SHARE)
    return whole + (randomness < rest / OLDEST_SHARE)


LANE = EventLane()
