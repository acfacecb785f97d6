"""The stream endpoint: a bot's messages as server-sent events."""

from collections.abc import AsyncGenerator
from datetime import timedelta
from functools import partial
from typing import Any

from starlette.responses import Response

from pabal.core.errors import AccountDisabled, RateLimited, Unauthenticated, Unavailable
from pabal.hub import Hub
from pabal.relay.auth import RelayPrincipal
from pabal.relay.delivery.stream import RelayStream, StreamFrame
from pabal.web.auth import bearer_token
from pabal.web.field_types import FilterText
from pabal.web.request import RequestContext, mark_authenticated
from pabal.web.route import ErrorFormat, HandlerAuth, RequestQuery, Route
from pabal.web.server.connection import detect_dead_peer, find_transport, reset_connection
from pabal.web.sse import PING, EventStreamResponse, format_sse_event, reconnect_hint

RELAY_PING_INTERVAL = timedelta(seconds=20)
MAX_EVENT_ID = 2**63 - 1


class RelayStreamQuery(RequestQuery, frozen=True):
    """The token, for clients that cannot send headers."""

    token: FilterText | None = None

    def __repr__(self) -> str:
        return "RelayStreamQuery(…)"


async def get_relay_stream(hub: Hub, context: RequestContext, query: RelayStreamQuery) -> Response:
    """Receive messages as server-sent events.

    The first event is `connected`, followed by `message`, `pairing_complete`, `pairing_expired`, `unpaired`, `error`.
    Send `Last-Event-ID` when you reconnect: messages up to that id stay yours, later ones are delivered again.
    The newest stream of a token gets the messages; older ones stay open without.
    """
    headers = context.request.headers
    token = (
        query.token if query.token and "authorization" not in headers else bearer_token(headers.get("authorization"))
    )
    stream, principal = await hub.relay.stream_registry.open(
        token, parse_last_event_id(headers.get("last-event-id")), context.client_ip
    )
    mark_authenticated(context.request)
    if transport := find_transport(context.request):
        detect_dead_peer(transport)
        stream.reset_connection = partial(reset_connection, transport)
    if hub.closing.is_set():  # close_all() missed it: the client reconnects, to another process
        stream.close()
    return EventStreamResponse(stream_relay_events(hub, stream, principal), stream.close)


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
        if hub.closing.is_set():
            yield reconnect_hint()
    finally:
        await relay.stream_registry.close(stream)


def relay_connected_data(stream: RelayStream, principal: RelayPrincipal) -> dict[str, Any]:
    return {
        "accountId": str(stream.account_id or ""),
        "sessionId": str(stream.token_id),
        "status": "paired" if principal.paired else "pending_pairing",
    }


def relay_event_id(frame: StreamFrame, stream: RelayStream) -> int:
    """Events without a message repeat the id of the last message."""
    return frame.message.delivery_seq if frame.message else stream.last_event_id or 0


def parse_last_event_id(header: str | None) -> int | None:
    """The newest id that the client has. A value that cannot be one of our ids is ignored."""
    if not header or len(header) > len(str(MAX_EVENT_ID)) or not (header.isascii() and header.isdecimal()):
        return None
    return int(header) if int(header) <= MAX_EVENT_ID else None


ROUTES = (
    Route(
        "GET",
        "/v1/events",
        get_relay_stream,
        handler_auth=HandlerAuth.RELAY,
        no_head=True,
        may_raise=(Unauthenticated, AccountDisabled, RateLimited, Unavailable),
        error_format=ErrorFormat.RELAY,
        response=str,
        media_type="text/event-stream",
        tag="relay",
    ),
)
