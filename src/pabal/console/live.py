"""What keeps a page alive: a stream that says "look again" when something rang, and now and then without."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import timedelta
from itertools import count

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pabal.api.errors import headers_for
from pabal.api.sse import EventStream
from pabal.console.gate import Look
from pabal.core.errors import TooMany, Unavailable
from pabal.db.bells import Bell
from pabal.db.doorbell import Ear
from pabal.operators import sessions
from pabal.operators.operators import Session
from pabal.wiring import Hub

LOOK = b"event: look\ndata: {}\n\n"
OFTEN = timedelta(milliseconds=700)
"""The least time between two looks: a flood of events is one picture, not a flood of pictures."""
SELDOM = timedelta(seconds=2)
"""The most: what ends does not ring."""
SEEN = 5
"""Looks after which a stream asks whether whoever looks is still let in."""
MOST = 8
"""Streams of one sign-in: as many windows as somebody looks at. Each further one looks by itself, now and then."""
OPEN = Counter[str]()
"""How many each has in this process."""

Let = Callable[[], Awaitable[bool]]


class Living(EventStream):
    """A stream that counts for whoever reads it, from its first byte to its last; past the most it is refused."""

    def __init__(self, reader: str, events: AsyncGenerator[bytes], hang_up: Callable[[], None]) -> None:
        super().__init__(events, hang_up)
        self._reader = reader

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if OPEN[self._reader] >= MOST:
            await Response(status_code=429, headers=headers_for(TooMany("streams", SELDOM)))(scope, receive, send)
            return
        OPEN[self._reader] += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            OPEN[self._reader] -= 1
            if not OPEN[self._reader]:
                del OPEN[self._reader]


async def stream(hub: Hub, _request: Request, session: Session) -> Response:
    async def let() -> bool:
        async with hub.autocommit() as tx:  # not by its cookie, which may be another by now
            return await sessions.stands(tx, session.session_id)

    return living(hub, let, str(session.session_id), *Bell)


def living(hub: Hub, let: Let, reader: str, *bells: Bell, seldom: timedelta = SELDOM) -> Response:
    """A stream of looks for whoever is let in, as long as they are. `reader` names their sign-in."""
    ear, gone = hub.doorbell.hear(*bells), asyncio.Event()

    def hang_up() -> None:
        gone.set()
        ear.nudge()

    return Living(reader, looks(hub, let, ear, gone, seldom), hang_up)


async def looks(hub: Hub, let: Let, ear: Ear, gone: asyncio.Event, seldom: timedelta) -> AsyncGenerator[bytes]:
    closing = asyncio.create_task(hub.closing.wait())
    closing.add_done_callback(lambda _: ear.nudge())
    try:
        with ear:
            yield b"retry: 2000\n\n"
            for turn in count(1):
                await ear.within(seldom)
                if gone.is_set() or closing.done():
                    return
                if turn % SEEN == 0 and not await still(let):
                    return
                yield LOOK
                await asyncio.wait([closing], timeout=OFTEN.total_seconds())
    finally:
        closing.cancel()


async def still(let: Let) -> bool:
    """Whether they are let in. While nobody can be asked they look on, at a page that says so."""
    try:
        return await let()
    except Unavailable:
        return True


PAGES = (Look("/console/live", stream),)
