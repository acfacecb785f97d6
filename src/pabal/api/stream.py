"""The stream of a bot's messages: connected, then what is due, then what comes."""

from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

from starlette.responses import Response

from pabal.api.credentials import bearer
from pabal.api.door import Door, Query, Shape
from pabal.api.sse import PING, EventStream, framed
from pabal.api.visit import Visit
from pabal.core.errors import AccountDisabled, TooMany, Unauthenticated, Unavailable
from pabal.relay.bearer import Bearer
from pabal.relay.stream import Frame, Stream
from pabal.wiring import Hub

PULSE = timedelta(seconds=20)
LARGEST = 2**63 - 1


class StreamQuery(Query, frozen=True):
    """For clients that cannot send headers: the token."""

    token: str | None = None

    def __repr__(self) -> str:
        return "StreamQuery(…)"


async def events(hub: Hub, visit: Visit, query: StreamQuery) -> Response:
    """Stay connected and be handed each message once, as server-sent events.

    The first is `connected`; then come `message`, `pairing_complete`, `pairing_expired`, `unpaired` and `error`.
    `Last-Event-ID` says what the client has: that stays held for it, and the rest is handed out again.
    """
    if hub.closing.is_set():
        raise Unavailable("the hub is stopping")
    headers = visit.request.headers
    token = query.token if query.token and "authorization" not in headers else bearer(headers.get("authorization"))
    stream, who = await hub.relay.switchboard.open(token, last_id(headers.get("last-event-id")))
    if hub.closing.is_set():  # while it was opened: those before it were sent home without it
        stream.hang_up()
    return EventStream(wire(hub, stream, who), stream.hang_up)


async def wire(hub: Hub, stream: Stream, who: Bearer) -> AsyncGenerator[bytes]:
    relay = hub.relay
    try:
        yield framed("connected", connected(stream, who), stream.last or 0)
        relay.switchboard.start(stream)
        async for frame in stream.frames(PULSE):
            if frame is None:
                yield PING
            elif frame.name:
                if frame.message:
                    relay.figures.delivered.add(1)
                yield framed(frame.name, frame.data, number_of(frame, stream))
    finally:
        await relay.switchboard.close(stream)


def connected(stream: Stream, who: Bearer) -> dict[str, Any]:
    return {
        "accountId": str(stream.account or ""),
        "sessionId": str(stream.token),
        "status": "paired" if who.paired else "pending_pairing",
    }


def number_of(frame: Frame, stream: Stream) -> int:
    """Events that carry no message repeat the last message's id."""
    return frame.message.handed if frame.message else stream.last or 0


def last_id(said: str | None) -> int | None:
    """The newest id a client says it has; what is no id of ours says nothing."""
    plain = said and len(said) <= len(str(LARGEST)) and said.isascii() and said.isdecimal()
    return int(said) if said and plain and int(said) <= LARGEST else None


DOORS = (
    Door(
        "GET",
        "/v1/events",
        events,
        claims=True,
        may_raise=(Unauthenticated, AccountDisabled, TooMany, Unavailable),
        shape=Shape.RELAY,
        gives=str,
        media_type="text/event-stream",
        tag="relay",
    ),
)
