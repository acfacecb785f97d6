"""Pull: fetch events, and say what became of each."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec

from pabal.core.errors import Unauthenticated
from pabal.events.lane import LANE, ClaimedEvent
from pabal.events.pull import EventPollRequest, Receipt, extend_claimed_events, settle_claimed_events
from pabal.hub import Hub
from pabal.queue.outcome import DONE, Dead, Outcome, Retry, Snooze
from pabal.tokens.permission import Permission
from pabal.tokens.verify import AuthenticatedService
from pabal.web.auth import bearer_token
from pabal.web.request import RequestContext
from pabal.web.route import RequestBody, ResponseBody, Route

LEASE_LOST_CODE = "lease_lost"
DEFAULT_SNOOZE = timedelta(seconds=30)
"""How long a snooze lasts that does not say."""

EventLeaseSeconds = Annotated[int, msgspec.Meta(ge=5, le=3600)]
ReceiptList = Annotated[list[Annotated[str, msgspec.Meta(max_length=64)]], msgspec.Meta(min_length=1, max_length=1000)]


class EventClaimBody(RequestBody, frozen=True):
    """How many, how long to wait for the first (ms), how long to hold them."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 10
    wait: Annotated[int, msgspec.Meta(ge=0, le=30_000)] = 0
    lease_seconds: EventLeaseSeconds = 30


class EventAckBody(RequestBody, frozen=True):
    """Receipts of events that are done."""

    receipts: ReceiptList


class EventNackBody(RequestBody, frozen=True, kw_only=True):
    """Receipts of events that failed, and why. `retry_after` (seconds) overrides the backoff.

    `outcome` may also be `dead`, which spends all attempts at once, or `snooze`, which spends none.
    """

    receipts: ReceiptList
    error: Annotated[str, msgspec.Meta(min_length=1)]
    error_code: Annotated[str, msgspec.Meta(max_length=100)] | None = None
    error_stack: str | None = None
    retry_after: Annotated[float, msgspec.Meta(ge=0, le=86_400)] | None = None
    outcome: Literal["retry", "dead", "snooze"] = "retry"

    def to_outcome(self) -> Outcome:
        after = None if self.retry_after is None else timedelta(seconds=self.retry_after)
        match self.outcome:
            case "retry":
                return Retry(self.error, after, self.error_code, self.error_stack)
            case "dead":
                return Dead(self.error, self.error_code, self.error_stack)
            case "snooze":
                return Snooze(self.error, DEFAULT_SNOOZE if after is None else after)


class EventExtendBody(RequestBody, frozen=True):
    """Receipts of events to hold longer. Those of one claim share its lease: extending one extends them all."""

    receipts: ReceiptList
    lease_seconds: EventLeaseSeconds = 30


class ClaimedEventView(ResponseBody, frozen=True):
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


class ClaimedEventsView(ResponseBody, frozen=True):
    events: list[ClaimedEventView]


class ReceiptResultView(ResponseBody, frozen=True, omit_defaults=True):
    """200, or 409 for a receipt whose lease is lost: the event was cancelled, settled, or is somebody else's now."""

    receipt: str
    status: int
    code: str | None = None


class ReceiptResultsView(ResponseBody, frozen=True):
    results: list[ReceiptResultView]


async def post_event_claim(
    hub: Hub, context: RequestContext, caller: AuthenticatedService, body: EventClaimBody
) -> ClaimedEventsView:
    """Fetch due events of one's own service, the most urgent first; waits for the first if asked to."""
    who = EventPollRequest(caller.service, timedelta(seconds=body.lease_seconds))
    found = await context.cancel_on_disconnect(
        hub.event_long_poll.poll(who, body.limit, timedelta(milliseconds=body.wait))
    )
    if found and body.wait:
        await release_events_if_revoked(hub, context, found)
    return ClaimedEventsView([claimed_event_view(item) for item in found])


async def release_events_if_revoked(hub: Hub, context: RequestContext, events: list[ClaimedEvent]) -> None:
    """A token that was revoked while its bearer waited brings nothing any more."""
    try:
        await hub.token_verifier.verify(bearer_token(context.request.headers.get("authorization")))
    except Unauthenticated:
        async with hub.transaction() as tx:
            await LANE.release(tx, events)
        raise


async def post_event_ack(hub: Hub, caller: AuthenticatedService, body: EventAckBody) -> ReceiptResultsView:
    """Say that events are done."""
    return await settle_receipts(hub, caller, body.receipts, DONE)


async def post_event_nack(hub: Hub, caller: AuthenticatedService, body: EventNackBody) -> ReceiptResultsView:
    """Say that events failed: they are tried again later, or are dead after the last attempt."""
    return await settle_receipts(hub, caller, body.receipts, body.to_outcome())


async def post_event_extend(hub: Hub, caller: AuthenticatedService, body: EventExtendBody) -> ReceiptResultsView:
    """Hold events longer: a heartbeat. A receipt that is lost says so."""
    known = {text: receipt for text in body.receipts if (receipt := Receipt.parse(text))}
    async with hub.transaction() as tx:
        good = await extend_claimed_events(tx, caller.service, [*known.values()], timedelta(seconds=body.lease_seconds))
    return receipt_results_view(body.receipts, known, good)


async def settle_receipts(
    hub: Hub, caller: AuthenticatedService, receipts: list[str], outcome: Outcome
) -> ReceiptResultsView:
    known = {text: receipt for text in receipts if (receipt := Receipt.parse(text))}
    async with hub.transaction() as tx:
        good = await settle_claimed_events(tx, caller.service, dict.fromkeys(known.values(), outcome))
    return receipt_results_view(receipts, known, good)


def receipt_results_view(receipts: Iterable[str], known: dict[str, Receipt], valid: set[Receipt]) -> ReceiptResultsView:
    return ReceiptResultsView(
        [
            ReceiptResultView(text, 200) if known.get(text) in valid else ReceiptResultView(text, 409, LEASE_LOST_CODE)
            for text in dict.fromkeys(receipts)
        ]
    )


def claimed_event_view(event: ClaimedEvent) -> ClaimedEventView:
    return ClaimedEventView(
        id=event.id,
        origin_id=event.origin_id,
        event_type=event.event_type,
        source_service=event.source_service,
        target_service=event.target_service,
        payload=event.payload,
        priority=event.priority,
        retry_count=event.retry_count,
        max_retries=event.max_retries,
        created_at=event.created_at,
        ordering_key=event.ordering_key,
        correlation_id=event.correlation_id,
        traceparent=event.traceparent,
        receipt=str(Receipt(event.id, event.lease)),
    )


ROUTES = (
    Route("POST", "/v1/queue/claim", post_event_claim, permission=Permission.CONSUME, tag="events"),
    Route("POST", "/v1/queue/ack", post_event_ack, permission=Permission.CONSUME, tag="events"),
    Route("POST", "/v1/queue/nack", post_event_nack, permission=Permission.CONSUME, tag="events"),
    Route("POST", "/v1/queue/extend", post_event_extend, permission=Permission.CONSUME, tag="events"),
)
