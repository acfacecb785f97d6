"""Pull: a service fetches its events and says what became of each."""

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
from pabal.events.lane import LANE, ClaimedEvent
from pabal.queue.lane import Settlement
from pabal.queue.outcome import Outcome

RECEIPT_BYTES = 32


@dataclass(frozen=True, slots=True)
class Receipt:
    """An event and the lease it was handed out under."""

    id: UUID
    lease: UUID

    def __str__(self) -> str:
        return encode_base64url(self.lease.bytes + self.id.bytes)

    @classmethod
    def parse(cls, text: str) -> "Receipt | None":
        """Read one back; None for anything we never wrote."""
        try:
            raw = decode_base64url(text)
        except ValueError:
            return None
        return cls(UUID(bytes=raw[16:]), UUID(bytes=raw[:16])) if len(raw) == RECEIPT_BYTES else None


Q = load_queries(__file__)


@dataclass(frozen=True, slots=True)
class EventPollRequest:
    """Who waits at the desk, and for how long they will hold what they get. Each caller waits, and holds, alone."""

    service: str
    hold: timedelta
    caller_id: UUID = field(default_factory=new_id)


@dataclass(frozen=True, slots=True)
class EventClaim:
    """As much of a handed-out event as settling it needs."""

    id: UUID
    lease: UUID
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
    """Claim for everybody who waits: one look at who has anything due, then a claim for each until nothing is left.

    Each has a lease of its own, so that nobody's heartbeat keeps what somebody else has dropped.
    """
    due = {*await LANE.services_with_due_events(tx)} if len(requests) > 1 else {who.service for who in requests}
    found: dict[EventPollRequest, Sequence[ClaimedEvent]] = {}
    for who, count in requests.items():
        if who.service not in due:
            continue
        try:
            found[who] = await LANE.claim(tx, count, who.hold, f"pull:{who.service}", service=who.service)
        except RetryableError:
            continue  # somebody else was at the same line; the desk looks again
        except PabalError:
            if any(found.values()):
                return found  # what is claimed is claimed; the rest is looked for again
            raise
        if len(found[who]) < count:
            due.discard(who.service)
    return found


async def settle_claimed_events(tx: Tx, service: str, outcomes: Mapping[Receipt, Outcome]) -> set[Receipt]:
    """Write down what became of these; gives those whose receipt still held."""
    held = await _find_event_claims(tx, service, [*outcomes])
    done = await LANE.settle(tx, [Settlement(item, outcomes[receipt]) for receipt, item in held.items()])
    return {receipt for receipt in held if receipt.id in done}


async def extend_claimed_events(tx: Tx, service: str, receipts: Sequence[Receipt], hold: timedelta) -> set[Receipt]:
    """Hold these longer; gives those that still held. Events of one claim share its lease and its end."""
    held = await _find_event_claims(tx, service, receipts)
    if not held:
        return set()
    await LANE.extend(tx, [*held.values()], hold)
    return {
        *await _find_event_claims(tx, service, [*held])
    }  # who waited for a lease that was just ending sees only now that it did


async def _find_event_claims(tx: Tx, service: str, receipts: Sequence[Receipt]) -> dict[Receipt, EventClaim]:
    found = await tx.all(
        EventClaim,
        Q.find_event_claims,
        service=service,
        ids=[each.id for each in receipts],
        leases=[each.lease for each in receipts],
    )
    return {Receipt(each.id, each.lease): each for each in found}
