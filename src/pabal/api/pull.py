"""Pull: fetch events, and say what became of each."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec

from pabal.api.credentials import bearer
from pabal.api.door import Answer, Body, Door
from pabal.api.visit import Visit
from pabal.core.errors import Unauthenticated
from pabal.events import pull
from pabal.events.lane import LANE, HeldEvent
from pabal.events.pull import Waiting
from pabal.events.receipt import Receipt
from pabal.queue.outcome import DONE, Dead, Outcome, Retry, Snooze
from pabal.tokens.permission import Permission
from pabal.tokens.verify import Caller
from pabal.wiring import Hub

STALE = "lease_lost"
SNOOZE = timedelta(seconds=30)
"""How long a snooze lasts that does not say."""

Seconds = Annotated[int, msgspec.Meta(ge=5, le=3600)]
Receipts = Annotated[list[Annotated[str, msgspec.Meta(max_length=64)]], msgspec.Meta(min_length=1, max_length=1000)]


class Claim(Body, frozen=True):
    """How many, how long to wait for the first (ms), how long to hold them."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 10
    wait: Annotated[int, msgspec.Meta(ge=0, le=30_000)] = 0
    lease_seconds: Seconds = 30


class Ack(Body, frozen=True):
    """Receipts of events that are done."""

    receipts: Receipts


class Nack(Body, frozen=True, kw_only=True):
    """Receipts of events that failed, and why. `retry_after` (seconds) overrides the backoff.

    `outcome` may also be `dead`, which spends all attempts at once, or `snooze`, which spends none.
    """

    receipts: Receipts
    error: Annotated[str, msgspec.Meta(min_length=1)]
    error_code: Annotated[str, msgspec.Meta(max_length=100)] | None = None
    error_stack: str | None = None
    retry_after: Annotated[float, msgspec.Meta(ge=0, le=86_400)] | None = None
    outcome: Literal["retry", "dead", "snooze"] = "retry"

    def read(self) -> Outcome:
        after = None if self.retry_after is None else timedelta(seconds=self.retry_after)
        match self.outcome:
            case "retry":
                return Retry(self.error, after, self.error_code, self.error_stack)
            case "dead":
                return Dead(self.error, self.error_code, self.error_stack)
            case "snooze":
                return Snooze(self.error, SNOOZE if after is None else after)


class Extend(Body, frozen=True):
    """Receipts of events to hold longer. Those of one claim share its lease: extending one extends them all."""

    receipts: Receipts
    lease_seconds: Seconds = 30


class HandedOut(Answer, frozen=True):
    """An event in the consumer's hands. Deduplicate by `origin_id`; show `receipt` to settle it."""

    id: UUID
    origin_id: UUID
    event_type: str
    source_service: str
    target_service: str
    payload: dict[str, Any]
    priority: int
    retry_count: int
    max_retries: int
    created_at: datetime
    ordering_key: str | None
    correlation_id: str | None
    traceparent: str | None
    receipt: str


class ClaimedEvents(Answer, frozen=True):
    events: list[HandedOut]


class ReceiptResult(Answer, frozen=True, omit_defaults=True):
    """200, or 409 for a receipt whose lease is lost: the event was cancelled, settled, or is somebody else's now."""

    receipt: str
    status: int
    code: str | None = None


class ReceiptResults(Answer, frozen=True):
    results: list[ReceiptResult]


async def claim(hub: Hub, visit: Visit, caller: Caller, body: Claim) -> ClaimedEvents:
    """Fetch due events of one's own service, the most urgent first; waits for the first if asked to."""
    who = Waiting(caller.service, timedelta(seconds=body.lease_seconds))
    found = await visit.stays_for(hub.desk.take(who, body.limit, timedelta(milliseconds=body.wait)))
    if found and body.wait:
        await see_again(hub, visit, found)
    return ClaimedEvents([handed_out(item) for item in found])


async def see_again(hub: Hub, visit: Visit, found: list[HeldEvent]) -> None:
    """A token that was revoked while its bearer waited brings nothing any more."""
    try:
        await hub.tokens.verify(bearer(visit.request.headers.get("authorization")))
    except Unauthenticated:
        async with hub.transaction() as tx:
            await LANE.release(tx, found)
        raise


async def ack(hub: Hub, caller: Caller, body: Ack) -> ReceiptResults:
    """Say that events are done."""
    return await settled(hub, caller, body.receipts, DONE)


async def nack(hub: Hub, caller: Caller, body: Nack) -> ReceiptResults:
    """Say that events failed: they are tried again later, or are dead after the last attempt."""
    return await settled(hub, caller, body.receipts, body.read())


async def extend(hub: Hub, caller: Caller, body: Extend) -> ReceiptResults:
    """Hold events longer: a heartbeat. A receipt that is lost says so."""
    known = {text: receipt for text in body.receipts if (receipt := Receipt.read(text))}
    async with hub.transaction() as tx:
        good = await pull.extend(tx, caller.service, [*known.values()], timedelta(seconds=body.lease_seconds))
    return results(body.receipts, known, good)


async def settled(hub: Hub, caller: Caller, texts: list[str], outcome: Outcome) -> ReceiptResults:
    known = {text: receipt for text in texts if (receipt := Receipt.read(text))}
    async with hub.transaction() as tx:
        good = await pull.settle(tx, caller.service, dict.fromkeys(known.values(), outcome))
    return results(texts, known, good)


def results(texts: Iterable[str], known: dict[str, Receipt], good: set[Receipt]) -> ReceiptResults:
    return ReceiptResults(
        [
            ReceiptResult(text, 200) if known.get(text) in good else ReceiptResult(text, 409, STALE)
            for text in dict.fromkeys(texts)
        ]
    )


def handed_out(item: HeldEvent) -> HandedOut:
    return HandedOut(
        id=item.id,
        origin_id=item.origin_id,
        event_type=item.event_type,
        source_service=item.source_service,
        target_service=item.target_service,
        payload=item.payload,
        priority=item.priority,
        retry_count=item.retry_count,
        max_retries=item.max_retries,
        created_at=item.created_at,
        ordering_key=item.ordering_key,
        correlation_id=item.correlation_id,
        traceparent=item.traceparent,
        receipt=str(Receipt(item.id, item.lease)),
    )


DOORS = (
    Door("POST", "/v1/queue/claim", claim, needs=Permission.CONSUME, tag="events"),
    Door("POST", "/v1/queue/ack", ack, needs=Permission.CONSUME, tag="events"),
    Door("POST", "/v1/queue/nack", nack, needs=Permission.CONSUME, tag="events"),
    Door("POST", "/v1/queue/extend", extend, needs=Permission.CONSUME, tag="events"),
)
