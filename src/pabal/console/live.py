"""What keeps a page alive: a stream that says "look again" when something rang, and now and then without."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import timedelta
from itertools import count

from starlette.requests import Request
from starlette.responses import Response

from pabal.api.sse import EventStream
from pabal.console.gate import Look
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
SEEN = 30
"""Looks after which a stream asks whether whoever looks is still let in."""

Let = Callable[[], Awaitable[bool]]


async def stream(hub: Hub, _request: Request, session: Session) -> Response:
    async def let() -> bool:
        async with hub.autocommit() as tx:  # not by its cookie, which may be another by now
            return await sessions.stands(tx, session.session_id)

    return living(hub, let, *Bell)


def living(hub: Hub, let: Let, *bells: Bell, seldom: timedelta = SELDOM) -> Response:
    """A stream of looks for whoever is let in, as long as they are."""
    ear, gone = hub.doorbell.hear(*bells), asyncio.Event()

    def hang_up() -> None:
        gone.set()
        ear.nudge()

    return EventStream(looks(hub, let, ear, gone, seldom), hang_up)


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
                if turn % SEEN == 0 and not await let():
                    return
                yield LOOK
                await asyncio.wait([closing], timeout=OFTEN.total_seconds())
    finally:
        closing.cancel()


PAGES = (Look("/console/live", stream),)
