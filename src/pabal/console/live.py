"""What keeps a page alive: a stream that says "look again" when something rang, and now and then without."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta
from itertools import count

from starlette.requests import Request
from starlette.responses import Response

from pabal.api.sse import EventStream
from pabal.console import sessions
from pabal.console.gate import Look
from pabal.db.bells import Bell
from pabal.db.doorbell import Ear
from pabal.operators.operators import Session
from pabal.wiring import Hub

LOOK = b"event: look\ndata: {}\n\n"
OFTEN = timedelta(milliseconds=700)
"""The least time between two looks: a flood of events is one picture, not a flood of pictures."""
SELDOM = timedelta(seconds=2)
"""The most: what ends does not ring."""
SEEN = 30
"""Looks after which a stream asks whether its operator is still signed in."""


async def stream(hub: Hub, request: Request, _session: Session) -> Response:
    ear, gone = hub.doorbell.hear(*Bell), asyncio.Event()

    def hang_up() -> None:
        gone.set()
        ear.nudge()

    return EventStream(looks(hub, request, ear, gone), hang_up)


async def looks(hub: Hub, request: Request, ear: Ear, gone: asyncio.Event) -> AsyncGenerator[bytes]:
    closing = asyncio.create_task(hub.closing.wait())
    closing.add_done_callback(lambda _: ear.nudge())
    try:
        with ear:
            yield b"retry: 2000\n\n"
            for turn in count(1):
                await ear.within(SELDOM)
                if gone.is_set() or closing.done():
                    return
                if turn % SEEN == 0 and await sessions.who(hub, request) is None:
                    return
                yield LOOK
                await asyncio.wait([closing], timeout=OFTEN.total_seconds())
    finally:
        closing.cancel()


PAGES = (Look("/console/live", stream),)
