"""Pull: claim events and report their outcomes."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Annotated, Literal
from uuid import UUID

import msgspec

from pabal.core.errors import Unauthenticated
from pabal.db.stored_json import raw_json
from pabal.events.consume.lane import LANE, ClaimedEvent
from pabal.events.consume.pull import EventPollRequest, Receipt, extend_claimed_events, settle_claimed_events
from pabal.hub import Hub
from pabal.queue.outcome import DONE, Dead, Outcome, Retry, Snooze
from pabal.tokens.permission import Permission
from pabal.tokens.verify import AuthenticatedService
from pabal.web.auth import bearer_token
from pabal.web.field_types import RawPayload
from pabal.web.request import RequestContext
from pabal.web.route import RequestBody, ResponseBody, Route

LEASE_LOST_CODE = "lease_lost"
DEFAULT_SNOOZE = timedelta(seconds=30)
"""The delay of a snooze without `retry_after`."""

EventLeaseSeconds = Annotated[int, msgspec.Meta(ge=5, le=3600)]
ReceiptList = Annotated[list[Annotated[str, msgspec.Meta(max_length=64)]], msgspec.Meta(min_length=1, max_length=1000)]


class EventClaimBody(RequestBody, frozen=True):
    """How many events to claim, how long to wait for the first (milliseconds), and how long to lease them."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 10
    wait: Annotated[int, msgspec.Meta(ge=0, le=30_000)] = 0
    lease_seconds: EventLeaseSeconds = 30


class EventAckBody(RequestBody, frozen=True):
    """Receipts of handled events."""

    receipts: ReceiptList


class EventNackBody(RequestBody, frozen=True, kw_only=True):
    """Receipts of failed events, and the reason. `retry_after` (seconds) overrides the backoff.

    The hub stores 4,000 characters of `error` and 8,000 of `error_stack`: of longer ones the beginning and the end.
    Secrets in them are masked.

    `outcome`: `retry` counts an attempt, `dead` gives up at once, `snooze` counts no attempt.
    """

    receipts: ReceiptList
    error: Annotated[str, msgspec.Meta(min_length=1)]
    error_code: Annotated[str, msgspec.Meta(max_length=100)] | None = None
    error_stack: str | None = None
    retry_after: Annotated[float, msgspec.Meta(ge=0, le=86_400)] | None = None
    outcome: Literal["retry", "dead", "snooze"] = "retry"

    def to_outcome(self) -> Outcome:
        delay = None if self.retry_after is None else timedelta(seconds=self.retry_after)
        match self.outcome:
            case "retry":
                return Retry(self.error, delay, self.error_code, self.error_stack)
            case "dead":
                return Dead(self.error, self.error_code, self.error_stack)
            case "snooze":
                return Snooze(self.error, DEFAULT_SNOOZE if delay is None else delay)


class EventExtendBody(RequestBody, frozen=True):
    """Receipts whose lease to extend. The events of one claim share a lease: extending one extends all of them."""

    receipts: ReceiptList
    lease_seconds: EventLeaseSeconds = 30


class ClaimedEventView(ResponseBody, frozen=True):
    """A claimed event. Deduplicate by `origin_id`; settle it with `receipt`."""

    id: UUID
    origin_id: UUID
    event_type: str
    source_service: str
    target_service: str
    payload: RawPayload
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
    """200, or 409 if the lease is lost: the event was cancelled or settled, or another consumer has it."""

    receipt: str
    status: int
    code: str | None = None


class ReceiptResultsView(ResponseBody, frozen=True):
    results: list[ReceiptResultView]


async def post_event_claim(
    hub: Hub, context: RequestContext, caller: AuthenticatedService, body: EventClaimBody
) -> ClaimedEventsView:
    """Claim due events of the service, the highest priority first. With `wait`, waits for the first one.

    A claim has fewer than `limit` events if their payloads reach 8 MB.
    """
    poll = EventPollRequest(caller.service, timedelta(seconds=body.lease_seconds))
    events = await context.cancel_on_disconnect(
        hub.event_long_poll.poll(poll, body.limit, timedelta(milliseconds=body.wait))
    )
    if events and body.wait:
        await release_events_if_revoked(hub, context, events)
    return ClaimedEventsView([claimed_event_view(event) for event in events])


async def release_events_if_revoked(hub: Hub, context: RequestContext, events: list[ClaimedEvent]) -> None:
    """Release the events if the token was revoked during the long poll."""
    try:
        await hub.token_verifier.verify(bearer_token(context.request.headers.get("authorization")))
    except Unauthenticated:
        async with hub.settle_db.transaction() as tx:
            await LANE.release(tx, events)
        raise


async def post_event_ack(hub: Hub, caller: AuthenticatedService, body: EventAckBody) -> ReceiptResultsView:
    """Acknowledge events that were handled."""
    return await settle_receipts(hub, caller, body.receipts, DONE)


async def post_event_nack(hub: Hub, caller: AuthenticatedService, body: EventNackBody) -> ReceiptResultsView:
    """Report failed events. They are retried later; after the last attempt they become dead letters."""
    return await settle_receipts(hub, caller, body.receipts, body.to_outcome())


async def post_event_extend(hub: Hub, caller: AuthenticatedService, body: EventExtendBody) -> ReceiptResultsView:
    """Extend the lease of events (heartbeat). Reports receipts whose lease is lost."""
    parsed = {text: receipt for text in body.receipts if (receipt := Receipt.parse(text))}
    async with hub.settle_db.transaction() as tx:
        held = await extend_claimed_events(
            tx, caller.service, [*parsed.values()], timedelta(seconds=body.lease_seconds)
        )
    return receipt_results_view(body.receipts, parsed, held)


async def settle_receipts(
    hub: Hub, caller: AuthenticatedService, receipts: list[str], outcome: Outcome
) -> ReceiptResultsView:
    parsed = {text: receipt for text in receipts if (receipt := Receipt.parse(text))}
    async with hub.settle_db.transaction() as tx:
        settled = await settle_claimed_events(tx, caller.service, dict.fromkeys(parsed.values(), outcome))
    return receipt_results_view(receipts, parsed, settled)


def receipt_results_view(receipts: Iterable[str], parsed: dict[str, Receipt], held: set[Receipt]) -> ReceiptResultsView:
    return ReceiptResultsView(
        [
            ReceiptResultView(text, 200) if parsed.get(text) in held else ReceiptResultView(text, 409, LEASE_LOST_CODE)
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
        payload=raw_json(event.payload_json),
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
    Route("POST", "/v1/queue/nack", post_event_nack, permission=Permission.CONSUME, max_body_bytes=None, tag="events"),
    Route("POST", "/v1/queue/extend", post_event_extend, permission=Permission.CONSUME, tag="events"),
)
