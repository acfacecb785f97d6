"""Events: publish them, look at them, call them off."""

from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Literal
from uuid import UUID

import msgspec
from starlette.responses import Response

from pabal.api.door import Answer, Body, Door
from pabal.api.errors import status_of
from pabal.api.mistakes import named
from pabal.api.moment import MomentView, traced
from pabal.api.nul import NO_NUL, field_with_nul
from pabal.api.page import PageQuery, cursor_at, place_of
from pabal.api.visit import Visit
from pabal.core.errors import Conflict, Forbidden, Invalid, NotFound, PabalError, TooLarge, Unavailable
from pabal.events import read
from pabal.events.cancel import cancel
from pabal.events.publish import LARGEST, Draft, Published, publish_all
from pabal.events.read import Event, Filter, Reader
from pabal.events.story import alone
from pabal.tokens.permission import Permission
from pabal.tokens.verify import Caller
from pabal.wiring import Hub

WORDS = {"critical": 1, "high": 3, "normal": 5, "low": 7}

EventType = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9_]+(\.[a-z0-9_]+)*$", max_length=128)]
ServiceName = Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9_]{1,62}$")]
Priority = Annotated[int, msgspec.Meta(ge=1, le=10)] | Literal["critical", "high", "normal", "low"]
ShortText = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
Payload = Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": "object"})]
Status = Literal["pending", "processing", "completed", "failed", "cancelled"]
Moment = Annotated[datetime, msgspec.Meta(tz=True)]


class EventDraft(Body, frozen=True, kw_only=True):
    """An event to be published. `target_service` left out means everybody who subscribed to its type."""

    event_type: EventType
    source_service: ServiceName | None = None
    target_service: ServiceName | None = None
    payload: Payload = msgspec.field(default_factory=lambda: msgspec.Raw(b"{}"))
    priority: Priority = 5
    max_retries: Annotated[int, msgspec.Meta(ge=0, le=100)] = 3
    deliver_at: Moment | None = None
    expires_at: Moment | None = None
    idempotency_key: ShortText | None = None
    ordering_key: ShortText | None = None
    correlation_id: ShortText | None = None
    traceparent: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$")] | None = (
        None
    )


class EventBatch(Body, frozen=True):
    """Up to a thousand events, recorded in this order. Each is read by itself: one that is wrong fails alone."""

    in_pieces: ClassVar[bool] = True

    events: Annotated[list[msgspec.Raw], msgspec.Meta(min_length=1, max_length=1000)]


class PublishedView(Answer, frozen=True):
    """A recorded event."""

    id: UUID
    status: str
    created_at: datetime


class BatchItem(Answer, frozen=True, omit_defaults=True):
    """What became of one event of a batch: 202 recorded, 200 recorded before under the same key, or an error."""

    status: int
    id: UUID | None = None
    code: str | None = None
    detail: str | None = None


class BatchResult(Answer, frozen=True):
    results: list[BatchItem]


class EventView(Answer, frozen=True):
    """An event as it stands."""

    id: UUID
    event_type: str
    source_service: str
    target_service: str | None
    payload: dict[str, Any]
    status: Status
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


class DeliveryView(Answer, frozen=True):
    """One receiver's part of a broadcast."""

    id: UUID
    target_service: str
    status: Status
    retry_count: int
    processed_at: datetime | None
    last_error: str | None


class EventStory(EventView, frozen=True, kw_only=True):
    """An event with everything that became of it. `trace` is what happened to it, in one line of time."""

    error_history: list[dict[str, Any]]
    deliveries: list[DeliveryView]
    dead_letters: list[UUID]
    trace: list[MomentView]


class EventPage(Answer, frozen=True):
    items: list[EventView]
    cursor: str | None


class Cancelled(Answer, frozen=True):
    """What was called off: the event, or the open deliveries of a broadcast."""

    cancelled: list[UUID]


class EventQuery(PageQuery, frozen=True, kw_only=True):
    """Which events; `type` may hold *."""

    status: Status | None = None
    type: str | None = None
    source: str | None = None
    target: str | None = None


async def publish_event(hub: Hub, caller: Caller, body: EventDraft) -> Response:
    """Publish an event. Answered when it is durable: 202, or 200 if the same was published under this key before."""
    event: Published = await hub.publisher.put(draft_of(caller, body))
    view = PublishedView(event.id, event.status, event.created_at)
    return Response(msgspec.json.encode(view), 200 if event.repeated else 202, media_type="application/json")


async def publish_events(hub: Hub, caller: Caller, body: EventBatch) -> BatchResult:
    """Publish many at once. Each item is told what became of it; one that is wrong does not hold up the others."""
    read_ones = [read_draft(caller, each) for each in body.events]
    good = [each for each in read_ones if isinstance(each, Draft)]
    results = await publish_all(hub.db, good) if good else []
    away = [each for each in results if isinstance(each, Unavailable)]
    if away and len(away) == len(results):
        raise away[0]
    published = iter(results)
    return BatchResult([item_of(next(published) if isinstance(each, Draft) else each) for each in read_ones])


async def list_events(hub: Hub, caller: Caller, query: EventQuery) -> EventPage:
    """Events one sent or received, the newest first; with `hub:admin` everybody's.

    A page is looked for among 20,000 at most. Where what is chosen is rare it may hold fewer than asked for, or none,
    and there may still be more: as long as there is a cursor.
    """
    chosen = Filter(query.status, query.type, query.source, query.target)
    async with hub.autocommit() as tx:
        sight = await read.look(tx, reader(caller), chosen, before=place_of(query.cursor), limit=query.limit)
    return EventPage([view_of(row) for row in sight.rows], cursor_at(sight.end))


async def show_event(hub: Hub, caller: Caller, id: UUID) -> EventStory:  # noqa: A002 as the path names it
    """Show an event with its attempts, its deliveries, its dead letters, and what happened to it when."""
    who = reader(caller)
    async with hub.autocommit() as tx:
        event = await read.find(tx, id, who)
        deliveries = await read.deliveries(tx, id, who) if event.is_broadcast else []
        letters = await read.letters(tx, id)
        moments = await alone(tx, id, notes=who.all)
    return EventStory(
        **fields_of(event),
        error_history=[*(event.error_history or ())],
        deliveries=[
            DeliveryView(**{name: getattr(each, name) for name in DeliveryView.__struct_fields__})
            for each in deliveries
        ],
        dead_letters=letters,
        trace=traced(moments),
    )


async def cancel_event(hub: Hub, visit: Visit, caller: Caller, id: UUID) -> Cancelled:  # noqa: A002 as above
    """Call an event of one's own off. Whoever holds it learns so at the next heartbeat; one that has ended is 409."""
    who = reader(caller)
    async with hub.transaction() as tx:
        event = await read.find(tx, id, who)
        if event.source_service != caller.service and not who.all:
            raise Forbidden("only its source may call an event off")
        return Cancelled(await cancel(tx, event, visit.by(caller.service)))


def reader(caller: Caller) -> Reader:
    return Reader(caller.service, all=Permission.ADMIN in caller.permissions)


def draft_of(caller: Caller, body: EventDraft) -> Draft:
    if body.source_service not in {None, caller.service}:
        raise Forbidden(f"source_service: the token is {caller.service}'s")
    payload = bytes(body.payload)
    if not payload.startswith(b"{"):
        raise Invalid.one("payload", "is not an object")
    if len(payload) > LARGEST:
        raise TooLarge(LARGEST)
    see_that_it_reads(payload)
    for name in ("deliver_at", "expires_at"):
        see_that_it_comes(name, getattr(body, name))
    return Draft(
        source=caller.service,
        event_type=body.event_type,
        payload=payload,
        target=body.target_service,
        priority=WORDS[body.priority] if isinstance(body.priority, str) else body.priority,
        max_retries=body.max_retries,
        deliver_at=body.deliver_at,
        expires_at=body.expires_at,
        idempotency_key=body.idempotency_key,
        ordering_key=body.ordering_key,
        correlation_id=body.correlation_id,
        traceparent=body.traceparent,
    )


def see_that_it_reads(payload: bytes) -> None:
    """What the table keeps must come out again: its text was not looked into so far."""
    try:
        msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Invalid.one("payload", "is not JSON that could be read back") from None


def see_that_it_comes(name: str, moment: datetime | None) -> None:
    """The last hours of the year 9999, and the first of the year 1, are in no calendar elsewhere."""
    try:
        _ = moment and moment.astimezone(UTC)
    except OverflowError:
        raise Invalid.one(name, "is out of range") from None


def read_draft(caller: Caller, raw: msgspec.Raw) -> Draft | Exception:
    if field := field_with_nul(bytes(raw), "event"):
        return Invalid.one(field, NO_NUL)
    try:
        return draft_of(caller, msgspec.json.decode(raw, type=EventDraft))
    except msgspec.ValidationError as error:
        return named(error, "event")
    except UnicodeDecodeError:
        return Invalid.one("event", "is not UTF-8")
    except PabalError as error:
        return error


def item_of(result: Published | Exception) -> BatchItem:
    match result:
        case Published():
            return BatchItem(200 if result.repeated else 202, result.id)
        case PabalError():
            return BatchItem(status_of(type(result)), code=result.code, detail=str(result))
        case _:
            raise result


def fields_of(event: Event) -> dict[str, Any]:
    return {name: getattr(event, name) for name in EventView.__struct_fields__}


def view_of(event: Event) -> EventView:
    return EventView(**fields_of(event))


DOORS = (
    Door(
        "POST",
        "/v1/queue/events",
        publish_event,
        needs=Permission.PUBLISH,
        answers=202,
        gives=PublishedView,
        also={200: "the same was published under this key before"},
        may_raise=(Conflict,),
        tag="events",
    ),
    Door("POST", "/v1/queue/events/batch", publish_events, needs=Permission.PUBLISH, tag="events"),
    Door("GET", "/v1/queue/events", list_events, needs=Permission.READ_EVENTS, tag="events"),
    Door("GET", "/v1/queue/events/{id}", show_event, needs=Permission.READ_EVENTS, may_raise=(NotFound,), tag="events"),
    Door(
        "POST",
        "/v1/queue/events/{id}/cancel",
        cancel_event,
        needs=Permission.PUBLISH,
        may_raise=(NotFound, Conflict),
        tag="events",
    ),
)
