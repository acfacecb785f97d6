"""Events: publish them, look at them, call them off."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Literal, Protocol
from uuid import UUID

import msgspec
from starlette.responses import Response

from pabal.core.errors import BodyTooLarge, Conflict, Forbidden, Invalid, NotFound, PabalError, Unavailable
from pabal.events.events import (
    Event,
    EventAccess,
    EventFilter,
    cancel_event,
    find_event,
    list_dead_letter_ids,
    list_deliveries,
    scan_events,
)
from pabal.events.publish import MAX_EVENT_PAYLOAD_BYTES, EventDraft, PublishResult, publish_event_batch
from pabal.events.types import PRIORITY_BY_NAME, EventStatus, EventType
from pabal.hub import Hub
from pabal.tokens.permission import Permission
from pabal.tokens.verify import AuthenticatedService
from pabal.trace.events import trace_single_event
from pabal.web.errors import error_status, invalid_from_msgspec
from pabal.web.pagination import PageQuery, decode_cursor, encode_cursor
from pabal.web.request import NUL_MESSAGE, RequestContext, find_nul_field
from pabal.web.route import RequestBody, ResponseBody, Route


class TraceEntryLike(Protocol):
    @property
    def at(self) -> datetime: ...
    @property
    def kind(self) -> str: ...
    @property
    def says(self) -> str: ...


class TraceEntryView(ResponseBody, frozen=True):
    """Something that happened to it, in words."""

    at: datetime
    kind: str
    says: str


def trace_entry_views(entries: Iterable[TraceEntryLike]) -> list[TraceEntryView]:
    return [TraceEntryView(each.at, each.kind, str(each.says)) for each in entries]


ServiceName = Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9_]{1,62}$")]
Priority = Annotated[int, msgspec.Meta(ge=1, le=10)] | Literal["critical", "high", "normal", "low"]
EventText = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
RawPayload = Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": "object"})]
AwareDatetime = Annotated[datetime, msgspec.Meta(tz=True)]


class EventBody(RequestBody, frozen=True, kw_only=True):
    """An event to be published. `target_service` left out means everybody who subscribed to its type."""

    event_type: EventType
    source_service: ServiceName | None = None
    target_service: ServiceName | None = None
    payload: RawPayload = msgspec.field(default_factory=lambda: msgspec.Raw(b"{}"))
    priority: Priority = 5
    max_retries: Annotated[int, msgspec.Meta(ge=0, le=100)] = 3
    deliver_at: AwareDatetime | None = None
    expires_at: AwareDatetime | None = None
    idempotency_key: EventText | None = None
    ordering_key: EventText | None = None
    correlation_id: EventText | None = None
    traceparent: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$")] | None = (
        None
    )


class EventBatchBody(RequestBody, frozen=True):
    """Up to a thousand events, recorded in this order. Each is read by itself: one that is wrong fails alone."""

    decodes_items: ClassVar[bool] = True

    events: Annotated[list[msgspec.Raw], msgspec.Meta(min_length=1, max_length=1000)]


class PublishedEventView(ResponseBody, frozen=True):
    """A recorded event."""

    id: UUID
    status: str
    created_at: datetime


class EventBatchItemView(ResponseBody, frozen=True, omit_defaults=True):
    """What became of one event of a batch: 202 recorded, 200 recorded before under the same key, or an error."""

    status: int
    id: UUID | None = None
    code: str | None = None
    detail: str | None = None


class EventBatchView(ResponseBody, frozen=True):
    results: list[EventBatchItemView]


class EventView(ResponseBody, frozen=True):
    """An event as it stands."""

    id: UUID
    event_type: str
    source_service: str
    target_service: str | None
    payload: dict[str, Any]
    status: EventStatus
    priority: int
    retry_count: int
    max_retries: int
    next_retry_at: datetime | None
    processing_started_at: datetime | None
    processor_id: str | None
    processed_at: datetime | None
    last_error: str | None
    error_code: str | None
    created_at: datetime
    expires_at: datetime | None
    ordering_key: str | None
    idempotency_key: str | None
    correlation_id: str | None
    traceparent: str | None
    parent_id: UUID | None
    origin_id: UUID
    is_broadcast: bool


class DeliveryView(ResponseBody, frozen=True):
    """One receiver's part of a broadcast."""

    id: UUID
    target_service: str
    status: EventStatus
    retry_count: int
    processed_at: datetime | None
    last_error: str | None


class EventDetailView(EventView, frozen=True, kw_only=True):
    """An event with everything that became of it. `trace` is what happened to it, in one line of time."""

    error_history: list[dict[str, Any]]
    deliveries: list[DeliveryView]
    dead_letters: list[UUID]
    trace: list[TraceEntryView]


class EventPage(ResponseBody, frozen=True):
    items: list[EventView]
    cursor: str | None


class CancelledEventsView(ResponseBody, frozen=True):
    """What was called off: the event, or the open deliveries of a broadcast."""

    cancelled: list[UUID]


class EventQuery(PageQuery, frozen=True, kw_only=True):
    """Which events; `type` may hold *."""

    status: EventStatus | None = None
    type: str | None = None
    source: str | None = None
    target: str | None = None


async def post_event(hub: Hub, caller: AuthenticatedService, body: EventBody) -> Response:
    """Publish an event. Answered when it is durable: 202, or 200 if the same was published under this key before."""
    event: PublishResult = await hub.publisher.put(to_event_draft(caller, body))
    view = PublishedEventView(event.id, event.status, event.created_at)
    return Response(msgspec.json.encode(view), 200 if event.repeated else 202, media_type="application/json")


async def post_event_batch(hub: Hub, caller: AuthenticatedService, body: EventBatchBody) -> EventBatchView:
    """Publish many at once. Each item is told what became of it; one that is wrong does not hold up the others."""
    read_ones = [decode_event_draft(caller, each) for each in body.events]
    good = [each for each in read_ones if isinstance(each, EventDraft)]
    results = await publish_event_batch(hub.db, good) if good else []
    away = [each for each in results if isinstance(each, Unavailable)]
    if away and len(away) == len(results):
        raise away[0]
    published = iter(results)
    return EventBatchView(
        [event_batch_item(next(published) if isinstance(each, EventDraft) else each) for each in read_ones]
    )


async def get_events(hub: Hub, caller: AuthenticatedService, query: EventQuery) -> EventPage:
    """Events one sent or received, the newest first; with `hub:admin` everybody's.

    A page is looked for among 20,000 at most. Where what is chosen is rare it may hold fewer than asked for, or none,
    and there may still be more: as long as there is a cursor.
    """
    chosen = EventFilter(query.status, query.type, query.source, query.target)
    async with hub.autocommit() as tx:
        sight = await scan_events(
            tx, event_access(caller), chosen, before=decode_cursor(query.cursor), limit=query.limit
        )
    return EventPage([event_view(row) for row in sight.rows], encode_cursor(sight.end))


async def get_event(hub: Hub, caller: AuthenticatedService, id: UUID) -> EventDetailView:
    """Show an event with its attempts, its deliveries, its dead letters, and what happened to it when."""
    who = event_access(caller)
    async with hub.autocommit() as tx:
        event = await find_event(tx, id, who)
        deliveries = await list_deliveries(tx, id, who) if event.is_broadcast else []
        letters = await list_dead_letter_ids(tx, id)
        moments = await trace_single_event(tx, id, include_notes=who.all_services)
    return EventDetailView(
        **event_view_fields(event),
        error_history=[*(event.error_history or ())],
        deliveries=[
            DeliveryView(**{name: getattr(each, name) for name in DeliveryView.__struct_fields__})
            for each in deliveries
        ],
        dead_letters=letters,
        trace=trace_entry_views(moments),
    )


async def post_event_cancel(
    hub: Hub, context: RequestContext, caller: AuthenticatedService, id: UUID
) -> CancelledEventsView:
    """Call an event of one's own off. Whoever holds it learns so at the next heartbeat; one that has ended is 409."""
    who = event_access(caller)
    async with hub.transaction() as tx:
        event = await find_event(tx, id, who)
        if event.source_service != caller.service and not who.all_services:
            raise Forbidden("only its source may call an event off")
        return CancelledEventsView(await cancel_event(tx, event, context.actor(caller.service)))


def event_access(caller: AuthenticatedService) -> EventAccess:
    return EventAccess(caller.service, all_services=Permission.ADMIN in caller.permissions)


def to_event_draft(caller: AuthenticatedService, body: EventBody) -> EventDraft:
    if body.source_service not in {None, caller.service}:
        raise Forbidden(f"source_service: the token is {caller.service}'s")
    payload = bytes(body.payload)
    if not payload.startswith(b"{"):
        raise Invalid.of_field("payload", "is not an object")
    if len(payload) > MAX_EVENT_PAYLOAD_BYTES:
        raise BodyTooLarge(MAX_EVENT_PAYLOAD_BYTES)
    check_payload_decodes(payload)
    for name in ("deliver_at", "expires_at"):
        check_time_in_range(name, getattr(body, name))
    return EventDraft(
        source=caller.service,
        event_type=body.event_type,
        payload=payload,
        target=body.target_service,
        priority=PRIORITY_BY_NAME[body.priority] if isinstance(body.priority, str) else body.priority,
        max_retries=body.max_retries,
        deliver_at=body.deliver_at,
        expires_at=body.expires_at,
        idempotency_key=body.idempotency_key,
        ordering_key=body.ordering_key,
        correlation_id=body.correlation_id,
        traceparent=body.traceparent,
    )


def check_payload_decodes(payload: bytes) -> None:
    """What the table keeps must come out again: its text was not looked into so far."""
    try:
        msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Invalid.of_field("payload", "is not JSON that could be read back") from None


def check_time_in_range(name: str, value: datetime | None) -> None:
    """The last hours of the year 9999, and the first of the year 1, are in no calendar elsewhere."""
    try:
        _ = value and value.astimezone(UTC)
    except OverflowError:
        raise Invalid.of_field(name, "is out of range") from None


def decode_event_draft(caller: AuthenticatedService, raw: msgspec.Raw) -> EventDraft | Exception:
    if field := find_nul_field(bytes(raw), "event"):
        return Invalid.of_field(field, NUL_MESSAGE)
    try:
        return to_event_draft(caller, msgspec.json.decode(raw, type=EventBody))
    except msgspec.ValidationError as error:
        return invalid_from_msgspec(error, "event")
    except UnicodeDecodeError:
        return Invalid.of_field("event", "is not UTF-8")
    except PabalError as error:
        return error


def event_batch_item(result: PublishResult | Exception) -> EventBatchItemView:
    match result:
        case PublishResult():
            return EventBatchItemView(200 if result.repeated else 202, result.id)
        case PabalError():
            return EventBatchItemView(error_status(type(result)), code=result.code, detail=str(result))
        case _:
            raise result


def event_view_fields(event: Event) -> dict[str, Any]:
    return {name: getattr(event, name) for name in EventView.__struct_fields__}


def event_view(event: Event) -> EventView:
    return EventView(**event_view_fields(event))


ROUTES = (
    Route(
        "POST",
        "/v1/queue/events",
        post_event,
        permission=Permission.PUBLISH,
        status=202,
        response=PublishedEventView,
        other_statuses={200: "the same was published under this key before"},
        may_raise=(Conflict,),
        tag="events",
    ),
    Route("POST", "/v1/queue/events/batch", post_event_batch, permission=Permission.PUBLISH, tag="events"),
    Route("GET", "/v1/queue/events", get_events, permission=Permission.READ_EVENTS, tag="events"),
    Route(
        "GET",
        "/v1/queue/events/{id}",
        get_event,
        permission=Permission.READ_EVENTS,
        may_raise=(NotFound,),
        tag="events",
    ),
    Route(
        "POST",
        "/v1/queue/events/{id}/cancel",
        post_event_cancel,
        permission=Permission.PUBLISH,
        may_raise=(NotFound, Conflict),
        tag="events",
    ),
)
