"""Toasts, for the person they are for: the inbox, what is done with them, and a stream of every change."""

from collections.abc import AsyncGenerator
from datetime import datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

from msgspec import Meta
from starlette.responses import Response

from pabal.api.door import Answer, Door, Query
from pabal.api.page import PageQuery, cursor_of, place_of
from pabal.api.sse import PING, EventStream, framed
from pabal.api.stream import LARGEST, last_id
from pabal.api.visit import Visit
from pabal.core.errors import NotFound, TooMany
from pabal.notifications import toasts
from pabal.notifications.board import Stream
from pabal.notifications.people import Person
from pabal.notifications.toasts import Mark, Standing, State, Toast
from pabal.wiring import Hub

PULSE = timedelta(seconds=20)


class ToastView(Answer, frozen=True):
    """A toast: plain text, in the language of `locale`."""

    id: UUID
    category: str
    criticality: str
    locale: str
    title: str | None
    body: str
    state: State
    created_at: datetime
    seen_at: datetime | None
    read_at: datetime | None
    archived_at: datetime | None

    @classmethod
    def of(cls, toast: Toast) -> "ToastView":
        return cls(**{name: getattr(toast, name) for name in cls.__struct_fields__})


class ToastPage(Answer, frozen=True):
    """A page of toasts, the newest first. A stream that begins `after` the number `last` misses nothing."""

    items: list[ToastView]
    cursor: str | None
    unread: int
    last: int


class ToastQuery(PageQuery, frozen=True, kw_only=True):
    """Which toasts: those in the inbox, or those put away."""

    archived: bool = False


class StreamQuery(Query, frozen=True):
    """Where to begin, for clients that cannot send `Last-Event-ID` the first time: after this number."""

    after: Annotated[int, Meta(ge=0, le=LARGEST)] | None = None


async def list_toasts(hub: Hub, person: Person, query: ToastQuery) -> ToastPage:
    """The person's toasts, and how many of them are unread."""
    async with hub.autocommit() as tx:
        now = await toasts.standing(tx, person.id)
        rows = await toasts.inbox(
            tx, person.id, archived=query.archived, before=place_of(query.cursor), limit=query.limit
        )
    return ToastPage([*map(ToastView.of, rows)], cursor_of(rows, query.limit), now.unread, now.last)


async def see_toast(hub: Hub, person: Person, id: UUID) -> ToastView:  # noqa: A002 the name in the path
    """Say that a toast was on a screen."""
    return await marked(hub, person, id, Mark.SEEN)


async def read_toast(hub: Hub, person: Person, id: UUID) -> ToastView:  # noqa: A002 the name in the path
    """Say that a toast was read."""
    return await marked(hub, person, id, Mark.READ)


async def archive_toast(hub: Hub, person: Person, id: UUID) -> ToastView:  # noqa: A002 the name in the path
    """Put a toast away."""
    return await marked(hub, person, id, Mark.ARCHIVE)


async def marked(hub: Hub, person: Person, toast: UUID, mark: Mark) -> ToastView:
    async with hub.transaction() as tx:
        return ToastView.of(await toasts.mark(tx, person.id, toast, mark))


async def stream_toasts(hub: Hub, visit: Visit, person: Person, query: StreamQuery) -> Response:
    """Stay connected and be told every change of the person's toasts, as server-sent events.

    The first is `connected`; then comes `toast` for each that arrives, is seen, read or put away, wherever that was
    done. Both say how many are unread. Whoever comes back with `Last-Event-ID` misses nothing; without it, and without
    `after`, the stream begins now.
    """
    said = last_id(visit.request.headers.get("last-event-id"))
    stream, now = await hub.board.open(person, query.after if said is None else said)
    return EventStream(wire(hub, stream, now), stream.hang_up)


async def wire(hub: Hub, stream: Stream, now: Standing) -> AsyncGenerator[bytes]:
    try:
        yield framed("connected", {"unread": now.unread}, stream.sent)
        async for change in stream.changes(PULSE):
            if change is None:
                yield PING
            else:
                told: dict[str, Any] = {"toast": ToastView.of(change), "unread": change.unread}
                yield framed("toast", told, change.seq)
    finally:
        hub.board.close(stream)


DOORS = (
    Door("GET", "/v1/toasts", list_toasts, person=True, tag="notifications"),
    Door(
        "GET",
        "/v1/toasts/stream",
        stream_toasts,
        person=True,
        claims=True,
        may_raise=(TooMany,),
        gives=str,
        media_type="text/event-stream",
        tag="notifications",
    ),
    *(
        Door("POST", f"/v1/toasts/{{id}}/{word}", handler, person=True, may_raise=(NotFound,), tag="notifications")
        for word, handler in (("seen", see_toast), ("read", read_toast), ("archive", archive_toast))
    ),
)
