"""Pull: a service claims its events and reports their outcomes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

from pabal.core.errors import PabalError
from pabal.core.ids import new_id
from pabal.core.secrets import decode_base64url, encode_base64url
from pabal.db.errors import RetryableError
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.events.consume.lane import LANE, ClaimedEvent, EventClaimFilter, requests_with_more
from pabal.queue.lane import ClaimRequest, Settlement
from pabal.queue.outcome import Outcome

Q = load_queries(__file__)

RECEIPT_BYTES = 32


@dataclass(frozen=True, slots=True)
class Receipt:
    """An event and the lease it was claimed under."""

    id: UUID
    lease: UUID

    def __str__(self) -> str:
        return encode_base64url(self.lease.bytes + self.id.bytes)

    @classmethod
    def parse(cls, text: str) -> "Receipt | None":
        """Parse a receipt; None if the text is not one."""
        try:
            raw = decode_base64url(text)
        except ValueError:
            return None
        return cls(UUID(bytes=raw[16:]), UUID(bytes=raw[:16])) if len(raw) == RECEIPT_BYTES else None


@dataclass(frozen=True, slots=True)
class EventPollRequest:
    """One long poll for events, and how long to lease them. `caller_id` keeps the leases of callers apart."""

    service: str
    hold: timedelta
    caller_id: UUID = field(default_factory=new_id)


@dataclass(frozen=True, slots=True)
class EventClaim:
    """The fields of a claimed event that settling it needs."""

    id: UUID
    lease: UUID
    target_service: str
    retry_count: int
    max_retries: int

    @property
    def attempt(self) -> int:
        return self.retry_count + 1

    @property
    def max_attempts(self) -> int:
        return self.max_retries + 1


async def claim_events_for_polls(
    tx: Tx, requests: Mapping[EventPollRequest, int]
) -> dict[EventPollRequest, Sequence[ClaimedEvent]]:
    """Claim events for all waiting polls: find their services with due events once, then claim for each poll.

    Each poll gets a lease of its own, so that the heartbeat of one consumer does not extend the events of another.
    """
    due = {poll.service for poll in requests}
    if len(due) > 1:
        due = {*await LANE.services_with_due_events(tx, [*due])}
    claimed: dict[EventPollRequest, Sequence[ClaimedEvent]] = {}
    for poll, count in requests.items():
        if poll.service not in due:
            continue
        claim_filter = EventClaimFilter(poll.service)
        try:
            claimed[poll] = await LANE.claim(tx, count, poll.hold, f"pull:{poll.service}", claim_filter)
        except RetryableError:
            continue  # another claim took the same ordering key; the long poll tries again
        except PabalError:
            if any(claimed.values()):
                return claimed  # these claims are committed; the long poll tries again for the rest
            raise
        if not any(requests_with_more([ClaimRequest(claim_filter, count)], claimed[poll], count)):
            due.discard(poll.service)
    return claimed


async def settle_claimed_events(tx: Tx, service: str, outcomes: Mapping[Receipt, Outcome]) -> set[Receipt]:
    """Settle claimed events; return the receipts whose lease still held."""
    claims = await _find_event_claims(tx, service, [*outcomes])
    settled = await LANE.settle(tx, [Settlement(claim, outcomes[receipt]) for receipt, claim in claims.items()])
    return {receipt for receipt in claims if receipt.id in settled}


async def extend_claimed_events(tx: Tx, service: str, receipts: Sequence[Receipt], hold: timedelta) -> set[Receipt]:
    """Extend leases; return the receipts whose lease still holds. The events of one claim share a lease."""
    claims = await _find_event_claims(tx, service, receipts)
    if not claims:
        return set()
    await LANE.extend(tx, [*claims.values()], hold)
    # Read again: extend may have waited for a transaction that ended the lease.
    return {*await _find_event_claims(tx, service, [*claims])}


async def _find_event_claims(tx: Tx, service: str, receipts: Sequence[Receipt]) -> dict[Receipt, EventClaim]:
    claims = await tx.all(
        EventClaim,
        Q.find_event_claims,
        service=service,
        ids=[receipt.id for receipt in receipts],
        leases=[receipt.lease for receipt in receipts],
    )
    return {Receipt(claim.id, claim.lease): claim for claim in claims}
