"""Pull: a service fetches its events and says what became of each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

from pabal.core.errors import PabalError
from pabal.core.ids import new_id
from pabal.db.faults import Contended
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.events.lane import LANE, HeldEvent
from pabal.events.receipt import Receipt
from pabal.queue.lane import Verdict
from pabal.queue.outcome import Outcome

Q = beside(__file__)


@dataclass(frozen=True, slots=True)
class Waiting:
    """Who waits at the desk, and for how long they will hold what they get. Each caller waits, and holds, alone."""

    service: str
    hold: timedelta
    caller: UUID = field(default_factory=new_id)


@dataclass(frozen=True, slots=True)
class Held:
    """As much of a handed-out event as settling it needs."""

    id: UUID
    lease: UUID
    retry_count: int
    max_retries: int

    @property
    def attempt(self) -> int:
        return self.retry_count + 1

    @property
    def allowed(self) -> int:
        return self.max_retries + 1


async def claim_for(tx: Tx, places: Mapping[Waiting, int]) -> dict[Waiting, Sequence[HeldEvent]]:
    """Claim for everybody who waits: one look at who has anything due, then a claim for each until nothing is left.

    Each has a lease of its own, so that nobody's heartbeat keeps what somebody else has dropped.
    """
    due = {*await LANE.rota(tx)} if len(places) > 1 else {who.service for who in places}
    found: dict[Waiting, Sequence[HeldEvent]] = {}
    for who, count in places.items():
        if who.service not in due:
            continue
        try:
            found[who] = await LANE.claim(tx, count, who.hold, f"pull:{who.service}", service=who.service)
        except Contended:
            continue  # somebody else was at the same line; the desk looks again
        except PabalError:
            if any(found.values()):
                return found  # what is claimed is claimed; the rest is looked for again
            raise
        if len(found[who]) < count:
            due.discard(who.service)
    return found


async def settle(tx: Tx, service: str, ends: Mapping[Receipt, Outcome]) -> set[Receipt]:
    """Write down what became of these; gives those whose receipt still held."""
    held = await _held(tx, service, [*ends])
    done = await LANE.settle(tx, [Verdict(item, ends[receipt]) for receipt, item in held.items()])
    return {receipt for receipt in held if receipt.id in done}


async def extend(tx: Tx, service: str, receipts: Sequence[Receipt], hold: timedelta) -> set[Receipt]:
    """Hold these longer; gives those that still held. Events of one claim share its lease and its end."""
    held = await _held(tx, service, receipts)
    if not held:
        return set()
    await LANE.extend(tx, [*held.values()], hold)
    return {*await _held(tx, service, [*held])}  # who waited for a lease that was just ending sees only now that it did


async def _held(tx: Tx, service: str, receipts: Sequence[Receipt]) -> dict[Receipt, Held]:
    found = await tx.all(
        Held, Q.held, service=service, ids=[each.id for each in receipts], leases=[each.lease for each in receipts]
    )
    return {Receipt(each.id, each.lease): each for each in found}
