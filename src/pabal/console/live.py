"""What keeps a page alive: a stream that says "look again" when something rang, and now and then without."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import timedelta
from itertools import count

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pabal.console.guards import Page
from pabal.core.errors import RateLimited, Unavailable
from pabal.db.channels import Channel
from pabal.db.doorbell import Listener
from pabal.hub import Hub
from pabal.operators.operators import OperatorSession
from pabal.operators.sessions import is_operator_session_active
from pabal.web.errors import error_headers
from pabal.web.sse import EventStreamResponse

REFRESH_EVENT = b"event: look\ndata: {}\n\n"
MIN_INTERVAL = timedelta(milliseconds=700)
"""The least time between two looks: a flood of events is one picture, not a flood of pictures."""
MAX_INTERVAL = timedelta(seconds=2)
"""The most: what ends does not ring."""
REFRESHES_PER_ACCESS_CHECK = 5
"""Looks after which a stream asks whether whoever looks is still let in."""
MAX_STREAMS = 8
"""Streams of one sign-in: as many windows as somebody looks at. Each further one looks by itself, now and then."""
OPEN_STREAMS = Counter[str]()
"""How many each has in this process."""

AccessCheck = Callable[[], Awaitable[bool]]


class RefreshStream(EventStreamResponse):
    """A stream that counts for whoever reads it, from its first byte to its last; past the most it is refused."""

    def __init__(self, session_key: str, events: AsyncGenerator[bytes], close: Callable[[], None]) -> None:
        super().__init__(events, close)
        self._session_key = session_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if OPEN_STREAMS[self._session_key] >= MAX_STREAMS:
            await Response(status_code=429, headers=error_headers(RateLimited("streams", MAX_INTERVAL)))(
                scope, receive, send
            )
            return
        OPEN_STREAMS[self._session_key] += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            OPEN_STREAMS[self._session_key] -= 1
            if not OPEN_STREAMS[self._session_key]:
                del OPEN_STREAMS[self._session_key]


async def live_page(hub: Hub, _request: Request, session: OperatorSession) -> Response:
    async def let() -> bool:
        async with hub.autocommit() as tx:  # not by its cookie, which may be another by now
            return await is_operator_session_active(tx, session.session_id)

    return refresh_stream(hub, let, str(session.session_id), *Channel)


def refresh_stream(
    hub: Hub, is_allowed: AccessCheck, session_key: str, *channels: Channel, max_interval: timedelta = MAX_INTERVAL
) -> Response:
    """A stream of looks for whoever is let in, as long as they are. `reader` names their sign-in."""
    ear, gone = hub.doorbell.listen(*channels), asyncio.Event()

    def hang_up() -> None:
        gone.set()
        ear.wake()

    return RefreshStream(session_key, refresh_events(hub, is_allowed, ear, gone, max_interval), hang_up)


async def refresh_events(
    hub: Hub, is_allowed: AccessCheck, listener: Listener, closed: asyncio.Event, max_interval: timedelta
) -> AsyncGenerator[bytes]:
    closing = asyncio.create_task(hub.closing.wait())
    closing.add_done_callback(lambda _: listener.wake())
    try:
        with listener:
            yield b"retry: 2000\n\n"
            for turn in count(1):
                await listener.wait(max_interval)
                if closed.is_set() or closing.done():
                    return
                if turn % REFRESHES_PER_ACCESS_CHECK == 0 and not await is_still_allowed(is_allowed):
                    return
                yield REFRESH_EVENT
                await asyncio.wait([closing], timeout=MIN_INTERVAL.total_seconds())
    finally:
        closing.cancel()


async def is_still_allowed(is_allowed: AccessCheck) -> bool:
    """Whether they are let in. While nobody can be asked they look on, at a page that says so."""
    try:
        return await is_allowed()
    except Unavailable:
        return True


PAGES = (Page("/console/live", live_page),)
