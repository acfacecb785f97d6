"""Events: publish, list, show and cancel."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Literal, assert_never
from uuid import UUID

import msgspec
from starlette.responses import Response

from pabal.core.errors import BodyTooLarge, Conflict, Forbidden, Invalid, NotFound, PabalError, Unavailable
from pabal.db.stored_json import raw_json
from pabal.events.delivery_state import (
    DeliveryState,
    describe_deliveries,
    read_delivery_state,
    read_delivery_states,
)
from pabal.events.error_history import FailedAttempt
from pabal.events.events import (
    Delivery,
    Event,
    EventAccess,
    EventFilter,
    EventPageRow,
    cancel_event,
    find_event,
    list_dead_letter_ids,
    list_deliveries,
    scan_event_page,
)
from pabal.events.publish.publish import (
    MAX_EVENT_PAYLOAD_BYTES,
    EventDraft,
    PublishResult,
    check_publish_right,
    has_unusual_numbers,
    publish_event_batch,
    publish_single_event,
)
from pabal.events.types import PRIORITY_BY_NAME, EventStatus, EventType
from pabal.hub import Hub
from pabal.tokens.permission import Permission
from pabal.tokens.services import SERVICE_NAME_PATTERN
from pabal.tokens.verify import AuthenticatedService
from pabal.trace.entry import TraceEntry, TraceEntryKind
from pabal.trace.events import trace_single_event
from pabal.web.encoded_response import EncodedJsonResponse
from pabal.web.errors import error_status, invalid_from_msgspec
from pabal.web.field_types import FilterText, RawPayload
from pabal.web.pagination import PageQuery, decode_cursor, encode_cursor
from pabal.web.request import NUL_MESSAGE, RequestContext, find_nul_field
from pabal.web.route import RequestBody, ResponseBody, Route
from pabal.web.sliced_encoding import encode_response
from pabal.web.untyped_json import decode_untyped_json


class TraceEntryView(ResponseBody, frozen=True):
    """One step in the life of an event or a notification, as a sentence."""

    at: datetime
    kind: TraceEntryKind
    says: str


def trace_entry_views(entries: Iterable[TraceEntry]) -> list[TraceEntryView]:
    return [TraceEntryView(entry.at, entry.kind, str(entry.says)) for entry in entries]


ServiceName = Annotated[str, msgspec.Meta(pattern=SERVICE_NAME_PATTERN)]
Traceparent = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$(?!\n)")]
EventPriority = Annotated[int, msgspec.Meta(ge=1, le=10)] | Literal["critical", "high", "normal", "low"]
EventText = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
MAX_EVENT_BODY_BYTES = MAX_EVENT_PAYLOAD_BYTES + 16_384
"""The payload and the other fields."""
AwareDatetime = Annotated[datetime, msgspec.Meta(tz=True)]


class EventBody(RequestBody, frozen=True, kw_only=True):
    """An event to publish. Without `target_service` it goes to every subscriber of its type."""

    event_type: EventType
    source_service: ServiceName | None = None
    target_service: ServiceName | None = None
    payload: RawPayload = msgspec.field(default_factory=lambda: msgspec.Raw(b"{}"))
    priority: EventPriority = 5
    max_retries: Annotated[int, msgspec.Meta(ge=0, le=100)] = 3
    deliver_at: AwareDatetime | None = None
    expires_at: AwareDatetime | None = None
    idempotency_key: EventText | None = None
    ordering_key: EventText | None = None
    correlation_id: EventText | None = None
    traceparent: Traceparent | None = None


class EventBatchBody(RequestBody, frozen=True):
    """Up to 1,000 events, recorded in this order. An invalid event fails alone."""

    decodes_items: ClassVar[bool] = True

    events: Annotated[list[msgspec.Raw], msgspec.Meta(min_length=1, max_length=1000)]


class PublishedEventView(ResponseBody, frozen=True):
    """The recorded event."""

    id: UUID
    status: EventStatus
    created_at: datetime


class EventBatchItemView(ResponseBody, frozen=True, omit_defaults=True):
    """The result for one event of a batch: 202 recorded, 200 already published with this key, or an error."""

    status: int
    id: UUID | None = None
    code: str | None = None
    detail: str | None = None
    event_status: EventStatus | None = None
    created_at: datetime | None = None


class EventBatchView(ResponseBody, frozen=True):
    results: list[EventBatchItemView]


class DeliveryStateView(ResponseBody, frozen=True):
    """How many deliveries of a broadcast are done, as far as the caller may see them.

    `created` of `deliveries` exist; the rest of a large broadcast is being created. A list counts up to 1,000 each.
    """

    summary: str
    deliveries: int
    created: int
    done: int
    dead: int
    cancelled: int


class EventView(ResponseBody, frozen=True):
    """An event and its current state. A broadcast is `completed` when published; see its `delivery_state`."""

    id: UUID
    event_type: str
    source_service: str
    target_service: str | None
    payload: RawPayload
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
    delivery_state: DeliveryStateView | None


class EventDetailView(EventView, frozen=True, kw_only=True):
    """An event with its failed attempts, deliveries and dead letters. `trace` lists what happened to it, in order."""

    error_history: list[FailedAttempt]
    deliveries: list[Delivery]
    dead_letters: list[UUID]
    trace: list[TraceEntryView]


class EventPage(ResponseBody, frozen=True):
    items: list[EventView]
    cursor: str | None


class CancelledEventsView(ResponseBody, frozen=True):
    """The cancelled event, or the cancelled deliveries of a broadcast."""

    cancelled: list[UUID]


class EventQuery(PageQuery, frozen=True, kw_only=True):
    """Filters. `type` may contain `*`."""

    status: EventStatus | None = None
    type: FilterText | None = None
    source: FilterText | None = None
    target: FilterText | None = None


async def post_event(hub: Hub, caller: AuthenticatedService, body: EventBody) -> Response:
    """Publish an event. Returns once it is durable: 202, or 200 if it was already published with this key."""
    draft = to_event_draft(caller, body)
    event: PublishResult = (
        await publish_single_event(hub.publish_db, draft)
        if has_unusual_numbers(draft.payload)
        else await hub.publisher.put(draft)
    )
    view = PublishedEventView(event.id, event.status, event.created_at)
    return EncodedJsonResponse(encode_response(view), 200 if event.repeated else 202)


async def post_event_batch(hub: Hub, caller: AuthenticatedService, body: EventBatchBody) -> EventBatchView:
    """Publish up to 1,000 events. Returns one result per event; an invalid event does not affect the others."""
    decoded = [decode_event_draft(caller, raw) for raw in body.events]
    drafts = [item for item in decoded if isinstance(item, EventDraft)]
    results = await publish_event_batch(hub.publish_db, drafts) if drafts else []
    unavailable = [result for result in results if isinstance(result, Unavailable)]
    if unavailable and len(unavailable) == len(results):
        raise unavailable[0]
    published = iter(results)
    return EventBatchView(
        [event_batch_item(next(published) if isinstance(item, EventDraft) else item) for item in decoded]
    )


async def get_events(hub: Hub, caller: AuthenticatedService, query: EventQuery) -> EventPage:
    """List the events that the service sent or received, the newest first. With `hub:admin`: of all services.

    A request reads at most 20,000 events. If few of them match, a page may hold fewer than `limit`, or none. A page
    also ends when its payloads reach 8 MB. Continue as long as there is a cursor.
    """
    criteria = EventFilter(query.status, query.type, query.source, query.target)
    access = event_access(caller)
    async with hub.autocommit() as tx:
        page = await scan_event_page(tx, access, criteria, before=decode_cursor(query.cursor), limit=query.limit)
        states = await read_delivery_states(tx, [event.id for event in page.rows if event.is_broadcast], access)
    views = [EventView(**event_view_fields(event, states.get(event.id))) for event in page.rows]
    return EventPage(views, encode_cursor(page.end))


async def get_event(hub: Hub, caller: AuthenticatedService, id: UUID) -> EventDetailView:
    """Get an event with its failed attempts, deliveries, dead letters and trace."""
    access = event_access(caller)
    async with hub.autocommit() as tx:
        event = await find_event(tx, id, access)
        deliveries = await list_deliveries(tx, id, access) if event.is_broadcast else []
        state = await read_delivery_state(tx, id, access) if event.is_broadcast else None
        dead_letters = await list_dead_letter_ids(tx, id)
        trace = await trace_single_event(tx, id, include_notes=access.all_services)
    return EventDetailView(
        **event_view_fields(event, state),
        error_history=[*(event.error_history or ())],
        deliveries=deliveries,
        dead_letters=dead_letters,
        trace=trace_entry_views(trace),
    )


async def post_event_cancel(
    hub: Hub, context: RequestContext, caller: AuthenticatedService, id: UUID
) -> CancelledEventsView:
    """Cancel an event. A consumer that already holds it is told at its next heartbeat. 409 if it has finished."""
    access = event_access(caller)
    async with hub.transaction() as tx:
        event = await find_event(tx, id, access)
        if event.source_service != caller.service and not access.all_services:
            raise Forbidden("Only the source service of an event can cancel it")
        return CancelledEventsView(await cancel_event(tx, event, context.actor(caller.service)))


def event_access(caller: AuthenticatedService) -> EventAccess:
    return EventAccess(caller.service, all_services=Permission.ADMIN in caller.permissions)


def to_event_draft(caller: AuthenticatedService, body: EventBody) -> EventDraft:
    if body.source_service not in {None, caller.service}:
        raise Forbidden(f"source_service: the token belongs to {caller.service}")
    check_publish_right(caller.service, body.event_type, caller.may_publish)
    payload = bytes(body.payload)
    if not payload.startswith(b"{"):
        raise Invalid.of_field("payload", "is not an object")
    if len(payload) > MAX_EVENT_PAYLOAD_BYTES:
        raise BodyTooLarge(MAX_EVENT_PAYLOAD_BYTES)
    decode_untyped_json(payload, "payload")  # PostgreSQL can store what a reader cannot decode
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


def check_time_in_range(name: str, value: datetime | None) -> None:
    """Refuse times that leave the years 1 to 9999 when converted to UTC."""
    try:
        _ = value and value.astimezone(UTC)
    except OverflowError:
        raise Invalid.of_field(name, "is out of range") from None


def decode_event_draft(caller: AuthenticatedService, raw: msgspec.Raw) -> EventDraft | PabalError:
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


def event_batch_item(result: PublishResult | PabalError) -> EventBatchItemView:
    match result:
        case PublishResult():
            return EventBatchItemView(
                200 if result.repeated else 202, result.id, event_status=result.status, created_at=result.created_at
            )
        case PabalError():
            return EventBatchItemView(error_status(type(result)), code=result.code, detail=str(result))
        case _:
            assert_never(result)


def event_view_fields(event: Event | EventPageRow, state: DeliveryState | None) -> dict[str, Any]:
    fields: dict[str, Any] = {name: getattr(event, name) for name in EVENT_FIELDS}
    fields["delivery_state"] = delivery_state_view(state) if state else None
    match event:
        case EventPageRow():
            return fields | {"payload": raw_json(event.payload_json)}
        case Event():
            return fields | {"payload": msgspec.Raw(msgspec.json.encode(event.payload))}


def delivery_state_view(state: DeliveryState) -> DeliveryStateView:
    return DeliveryStateView(
        str(describe_deliveries(state)), state.deliveries, state.created, state.done, state.dead, state.cancelled
    )


EVENT_FIELDS = tuple(name for name in EventView.__struct_fields__ if name not in {"payload", "delivery_state"})


ROUTES = (
    Route(
        "POST",
        "/v1/queue/events",
        post_event,
        permission=Permission.PUBLISH,
        status=202,
        response=PublishedEventView,
        other_statuses={200: "The same event was already published with this key"},
        may_raise=(Conflict,),
        max_body_bytes=MAX_EVENT_BODY_BYTES,
        tag="events",
    ),
    Route(
        "POST",
        "/v1/queue/events/batch",
        post_event_batch,
        permission=Permission.PUBLISH,
        max_body_bytes=None,
        tag="events",
    ),
    Route("GET", "/v1/queue/events", get_events, permission=Permission.READ_EVENTS, or_admin=True, tag="events"),
    Route(
        "GET",
        "/v1/queue/events/{id}",
        get_event,
        permission=Permission.READ_EVENTS,
        or_admin=True,
        may_raise=(NotFound,),
        tag="events",
    ),
    Route(
        "POST",
        "/v1/queue/events/{id}/cancel",
        post_event_cancel,
        permission=Permission.PUBLISH,
        or_admin=True,
        may_raise=(NotFound, Conflict),
        tag="events",
    ),
)
