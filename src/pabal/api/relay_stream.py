"""The stream of a bot's messages: connected, then what is due, then what comes."""

from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

from starlette.responses import Response

from pabal.core.errors import AccountDisabled, RateLimited, Unauthenticated, Unavailable
from pabal.hub import Hub
from pabal.relay.auth import RelayPrincipal
from pabal.relay.delivery.stream import RelayStream, StreamFrame
from pabal.web.auth import bearer_token
from pabal.web.request import RequestContext
from pabal.web.route import ErrorFormat, RequestQuery, Route
from pabal.web.sse import PING, EventStreamResponse, format_sse_event

RELAY_PING_INTERVAL = timedelta(seconds=20)
MAX_EVENT_ID = 2**63 - 1


class RelayStreamQuery(RequestQuery, frozen=True):
    """For clients that cannot send headers: the token."""

    token: str | None = None

    def __repr__(self) -> str:
        return "RelayStreamQuery(…)"


async def get_relay_stream(hub: Hub, context: RequestContext, query: RelayStreamQuery) -> Response:
    """Stay connected and be handed each message once, as server-sent events.

    The first is `connected`; then come `message`, `pairing_complete`, `pairing_expired`, `unpaired` and `error`.
    `Last-Event-ID` says what the client has: that stays held for it, and the rest is handed out again.
    """
    if hub.closing.is_set():
        raise Unavailable("the hub is stopping")
    headers = context.request.headers
    token = (
        query.token if query.token and "authorization" not in headers else bearer_token(headers.get("authorization"))
    )
    stream, who = await hub.relay.stream_registry.open(token, parse_last_event_id(headers.get("last-event-id")))
    if hub.closing.is_set():  # while it was opened: those before it were sent home without it
        stream.close()
    return EventStreamResponse(stream_relay_events(hub, stream, who), stream.close)


async def stream_relay_events(hub: Hub, stream: RelayStream, principal: RelayPrincipal) -> AsyncGenerator[bytes]:
    relay = hub.relay
    try:
        yield format_sse_event("connected", relay_connected_data(stream, principal), stream.last_event_id or 0)
        relay.stream_registry.start(stream)
        async for frame in stream.frames(RELAY_PING_INTERVAL):
            if frame is None:
                yield PING
            elif frame.name:
                if frame.message:
                    relay.metrics.messages_delivered.add(1)
                yield format_sse_event(frame.name, frame.data, relay_event_id(frame, stream))
    finally:
        await relay.stream_registry.close(stream)


def relay_connected_data(stream: RelayStream, principal: RelayPrincipal) -> dict[str, Any]:
    return {
        "accountId": str(stream.account_id or ""),
        "sessionId": str(stream.token_id),
        "status": "paired" if principal.paired else "pending_pairing",
    }


def relay_event_id(frame: StreamFrame, stream: RelayStream) -> int:
    """Events that carry no message repeat the last message's id."""
    return frame.message.delivery_seq if frame.message else stream.last_event_id or 0


def parse_last_event_id(header: str | None) -> int | None:
    """The newest id a client says it has; what is no id of ours says nothing."""
    plain = header and len(header) <= len(str(MAX_EVENT_ID)) and header.isascii() and header.isdecimal()
    return int(header) if header and plain and int(header) <= MAX_EVENT_ID else None


ROUTES = (
    Route(
        "GET",
        "/v1/events",
        get_relay_stream,
        no_head=True,
        may_raise=(Unauthenticated, AccountDisabled, RateLimited, Unavailable),
        error_format=ErrorFormat.RELAY,
        response=str,
        media_type="text/event-stream",
        tag="relay",
    ),
)
