"""Server-sent events: LF line ends, one `data:` line of JSON, and an id with every event."""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

PING = b": ping\n\n"
RECONNECT_MS = (200, 1000)
SSE_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}

encode_event_data = msgspec.json.Encoder().encode


def format_sse_event(name: str, data: Any, event_id: int) -> bytes:
    """Encode one event. JSON escapes line ends, so the data always fits on one line."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event_id, name.encode(), encode_event_data(data))


def reconnect_hint() -> bytes:
    """The end of a stream whose process stops: reconnect soon, but not all clients at the same moment.

    It begins with a comment, as a ping does, for clients that know only comments and events.
    """
    return b": stopping\nretry: %d\n\n" % random.randint(*RECONNECT_MS)  # noqa: S311 jitter, not a secret


class EventStreamResponse(Response):
    """A response that stays open until the events end or the client disconnects."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes], on_disconnect: Callable[[], None]) -> None:
        super().__init__(headers=SSE_HEADERS)
        del self.headers["content-length"]
        self._events = events
        self._on_disconnect = on_disconnect
        """Called on disconnect; must end the events."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 the ASGI signature
        disconnect = asyncio.create_task(self._wait_for_disconnect(receive))
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async with aclosing(self._events) as events:
                async for event in events:
                    await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            disconnect.cancel()

    async def _wait_for_disconnect(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            continue
        self._on_disconnect()
