"""Server-sent events that tell an open page when to refresh: after a notification, or after a maximum interval."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import timedelta
from itertools import count

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pabal.console.access.guards import Page
from pabal.core.errors import RateLimited, Unavailable
from pabal.db.doorbell.channels import Channel
from pabal.db.doorbell.doorbell import Listener
from pabal.hub import Hub
from pabal.operators.operators import OperatorSession
from pabal.operators.sessions import is_operator_session_active
from pabal.web.errors import error_headers
from pabal.web.sse import EventStreamResponse

REFRESH_EVENT = b"event: refresh\ndata: {}\n\n"
MIN_INTERVAL = timedelta(milliseconds=700)
"""Time between two refreshes at least: a burst of notifications causes one refresh."""
MAX_INTERVAL = timedelta(seconds=2)
"""Time between two refreshes at most: not every change sends a notification."""
REFRESHES_PER_ACCESS_CHECK = 5
MAX_STREAMS = 8
"""Streams per sign-in. A page without a stream polls."""

AccessCheck = Callable[[], Awaitable[bool]]


class OpenStreamCounter:
    """Counts the open streams of each sign-in of one application."""

    def __init__(self) -> None:
        self._counts = Counter[str]()

    def acquire(self, session_key: str) -> bool:
        """Reserve a stream, unless the sign-in already has `MAX_STREAMS`."""
        if self._counts[session_key] >= MAX_STREAMS:
            return False
        self._counts[session_key] += 1
        return True

    def release(self, session_key: str) -> None:
        self._counts[session_key] -= 1
        if not self._counts[session_key]:
            del self._counts[session_key]


class RefreshStream(EventStreamResponse):
    """A stream that counts against the limit of its sign-in while it is open. Beyond the limit the answer is 429."""

    def __init__(
        self,
        open_streams: OpenStreamCounter,
        session_key: str,
        events: AsyncGenerator[bytes],
        close: Callable[[], None],
    ) -> None:
        super().__init__(events, close)
        self._open_streams = open_streams
        self._session_key = session_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._open_streams.acquire(self._session_key):
            rejection = Response(status_code=429, headers=error_headers(RateLimited("streams", MAX_INTERVAL)))
            await rejection(scope, receive, send)
            return
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._open_streams.release(self._session_key)


async def live_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    async def is_session_active() -> bool:
        async with hub.autocommit() as tx:  # by id: the cookie may have been renewed since the stream was opened
            return await is_operator_session_active(tx, session.session_id)

    return refresh_stream(hub, request, is_session_active, str(session.session_id), *Channel)


def refresh_stream(
    hub: Hub,
    request: Request,
    is_allowed: AccessCheck,
    session_key: str,
    *channels: Channel,
    max_interval: timedelta | None = None,
) -> Response:
    """Answer with a stream of refreshes for as long as `is_allowed`. `session_key` identifies the sign-in.

    `max_interval` is MAX_INTERVAL by default.
    """
    listener, closed = hub.doorbell.listen(*channels), asyncio.Event()

    def close() -> None:
        closed.set()
        listener.wake()

    events = refresh_events(hub, is_allowed, listener, closed, max_interval or MAX_INTERVAL)
    return RefreshStream(open_streams_of(request), session_key, events, close)


def open_streams_of(request: Request) -> OpenStreamCounter:
    """Return the stream counts of the application that serves the request."""
    state = request.app.state
    if not hasattr(state, "open_streams"):
        state.open_streams = OpenStreamCounter()
    return state.open_streams


async def refresh_events(
    hub: Hub, is_allowed: AccessCheck, listener: Listener, closed: asyncio.Event, max_interval: timedelta
) -> AsyncGenerator[bytes]:
    closing = asyncio.create_task(hub.closing.wait())
    closing.add_done_callback(lambda _: listener.wake())
    try:
        with listener:
            yield b"retry: 2000\n\n"
            for number in count(1):
                await listener.wait(max_interval)
                if closed.is_set() or closing.done():
                    return
                if number % REFRESHES_PER_ACCESS_CHECK == 0 and not await is_still_allowed(is_allowed):
                    return
                yield REFRESH_EVENT
                await asyncio.wait([closing], timeout=MIN_INTERVAL.total_seconds())
    finally:
        closing.cancel()


async def is_still_allowed(is_allowed: AccessCheck) -> bool:
    """Check access. While the database is unavailable the stream stays open, and the page reports the outage."""
    try:
        return await is_allowed()
    except Unavailable:
        return True


PAGES = (Page("/console/live", live_page),)
