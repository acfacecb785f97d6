"""Toasts, for their recipient: list them, mark them, and stream every change."""

from collections.abc import AsyncGenerator
from datetime import datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

from msgspec import Meta
from starlette.responses import Response

from pabal import limits
from pabal.api.relay_stream import MAX_EVENT_ID, parse_last_event_id
from pabal.core.errors import NotFound, RateLimited
from pabal.hub import Hub
from pabal.limits import RateLimit
from pabal.notifications.people.stream_tickets import issue_stream_ticket
from pabal.notifications.people.tokens import Person
from pabal.notifications.states import CategoryName, CriticalityName
from pabal.notifications.toasts.inbox import (
    InboxState,
    Toast,
    ToastAction,
    ToastState,
    list_toasts,
    load_inbox_state,
    mark_all_toasts_read,
    mark_toast,
)
from pabal.notifications.toasts.streams import ToastStream
from pabal.web.origin import allowed_page_origin
from pabal.web.pagination import PageQuery, decode_cursor, next_cursor
from pabal.web.request import RequestContext
from pabal.web.route import RequestQuery, ResponseBody, Route
from pabal.web.sse import PING, EventStreamResponse, format_sse_event, reconnect_hint

TOAST_PING_INTERVAL = timedelta(seconds=20)
TICKETS_PER_PERSON = RateLimit("stream tickets of this person", 120, timedelta(minutes=1))
StreamTicketText = Annotated[str, Meta(max_length=100)]


class ToastView(ResponseBody, frozen=True):
    """A toast. Title and body are plain text in the language of `locale`."""

    id: UUID
    category: CategoryName
    criticality: CriticalityName
    locale: str
    title: str | None
    body: str
    state: ToastState
    created_at: datetime
    seen_at: datetime | None
    read_at: datetime | None
    archived_at: datetime | None

    @classmethod
    def of(cls, toast: Toast) -> "ToastView":
        return cls(**{name: getattr(toast, name) for name in cls.__struct_fields__})


class ToastPage(ResponseBody, frozen=True):
    """A page of toasts, the newest first. A stream that starts `after` the number `last` misses nothing."""

    items: list[ToastView]
    cursor: str | None
    unread: int
    last: int


class ToastsReadView(ResponseBody, frozen=True):
    """How many toasts were marked as read."""

    marked: int


class ToastQuery(PageQuery, frozen=True, kw_only=True):
    """Which toasts to list: those in the inbox, or the archived ones."""

    archived: bool = False


class ToastStreamQuery(RequestQuery, frozen=True):
    """The number to start after, and a ticket, for clients that cannot send headers with the first request."""

    after: Annotated[int, Meta(ge=0, le=MAX_EVENT_ID)] | None = None
    ticket: StreamTicketText | None = None

    def __repr__(self) -> str:
        return "ToastStreamQuery(…)"


class StreamTicketView(ResponseBody, frozen=True):
    """A ticket that opens one stream of toasts, shown only once."""

    ticket: str
    expires_at: datetime

    def __repr__(self) -> str:
        return "StreamTicketView(…)"


async def get_toasts(hub: Hub, person: Person, query: ToastQuery) -> ToastPage:
    """List the person's toasts, with the number of unread ones."""
    async with hub.autocommit() as tx:
        inbox = await load_inbox_state(tx, person.id)
        rows = await list_toasts(
            tx, person.id, archived=query.archived, before=decode_cursor(query.cursor), limit=query.limit
        )
    return ToastPage([*map(ToastView.of, rows)], next_cursor(rows, query.limit), inbox.unread, inbox.last_seq)


async def post_toast_seen(hub: Hub, person: Person, id: UUID) -> ToastView:
    """Mark a toast as seen: it was shown on a screen."""
    return await mark_own_toast(hub, person, id, ToastAction.SEEN)


async def post_toast_read(hub: Hub, person: Person, id: UUID) -> ToastView:
    """Mark a toast as read."""
    return await mark_own_toast(hub, person, id, ToastAction.READ)


async def post_toasts_read(hub: Hub, person: Person) -> ToastsReadView:
    """Mark all toasts of the inbox as read."""
    async with hub.transaction() as tx:
        return ToastsReadView(await mark_all_toasts_read(tx, person.id))


async def post_toast_archive(hub: Hub, person: Person, id: UUID) -> ToastView:
    """Archive a toast."""
    return await mark_own_toast(hub, person, id, ToastAction.ARCHIVE)


async def mark_own_toast(hub: Hub, person: Person, toast_id: UUID, action: ToastAction) -> ToastView:
    async with hub.transaction() as tx:
        return ToastView.of(await mark_toast(tx, person.id, toast_id, action))


async def post_stream_ticket(hub: Hub, context: RequestContext, person: Person) -> StreamTicketView:
    """Issue a ticket for `GET /v1/toasts/stream`, which a browser's EventSource can send in the query.

    It opens one stream within 30 seconds, from a page of the same origin. The stream ends with the person's token.

    Limited to 120 tickets per person and minute.
    """
    origin = allowed_page_origin(context.request, hub)
    async with hub.autocommit() as tx:
        await limits.consume_rate_limit(tx, TICKETS_PER_PERSON, person.id)
    async with hub.transaction() as tx:
        issued = await issue_stream_ticket(tx, person, origin)
    return StreamTicketView(issued.ticket, issued.expires_at)


async def get_toast_stream(hub: Hub, context: RequestContext, person: Person, query: ToastStreamQuery) -> Response:
    """Stream every change of the person's toasts as server-sent events.

    The first event is `connected`; a `toast` event follows whenever a toast arrives or is seen, read or archived. Both
    contain the number of unread toasts. A client that reconnects with `Last-Event-ID` misses nothing. Without it, and
    without `after`, the stream starts now. A browser's EventSource, which sends no headers, authenticates with a
    `ticket`; it takes a new one for every connection.
    """
    last_event_id = parse_last_event_id(context.request.headers.get("last-event-id"))
    stream, inbox = await hub.toast_streams.open(person, query.after if last_event_id is None else last_event_id)
    if hub.closing.is_set():  # close_all() missed it: the client reconnects, to another process
        stream.close()
    return EventStreamResponse(stream_toast_events(hub, stream, inbox), stream.close)


async def stream_toast_events(hub: Hub, stream: ToastStream, inbox: InboxState) -> AsyncGenerator[bytes]:
    try:
        yield format_sse_event("connected", {"unread": inbox.unread}, stream.sent_seq)
        async for change in stream.changes(TOAST_PING_INTERVAL):
            if change is None:
                yield PING
            else:
                data: dict[str, Any] = {"toast": ToastView.of(change), "unread": change.unread}
                yield format_sse_event("toast", data, change.seq)
        if hub.closing.is_set():
            yield reconnect_hint()
    finally:
        hub.toast_streams.close(stream)


ROUTES = (
    Route("GET", "/v1/toasts", get_toasts, person_auth=True, cross_origin=True, tag="notifications"),
    Route(
        "POST",
        "/v1/toasts/ticket",
        post_stream_ticket,
        person_auth=True,
        cross_origin=True,
        status=201,
        may_raise=(RateLimited,),
        tag="notifications",
    ),
    Route("POST", "/v1/toasts/read", post_toasts_read, person_auth=True, cross_origin=True, tag="notifications"),
    *(
        Route(
            "GET",
            path,
            get_toast_stream,
            person_auth=True,
            ticket_auth=is_public,
            cross_origin=is_public,
            no_head=True,
            may_raise=(RateLimited,),
            response=str,
            media_type="text/event-stream",
            tag="notifications",
        )
        for path, is_public in (("/v1/toasts/stream", True), ("/me/stream", False))  # the cookie is sent under /me
    ),
    *(
        Route(
            "POST",
            f"/v1/toasts/{{id}}/{action}",
            handler,
            person_auth=True,
            cross_origin=True,
            may_raise=(NotFound,),
            tag="notifications",
        )
        for action, handler in (("seen", post_toast_seen), ("read", post_toast_read), ("archive", post_toast_archive))
    ),
)
