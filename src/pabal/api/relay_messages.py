"""Message endpoints for bots that poll: fetch messages, then acknowledge, return or extend them."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pabal import limits
from pabal.core.errors import Invalid, PabalError, RateLimited
from pabal.hub import Hub
from pabal.limits import RateLimit
from pabal.relay.auth import AccountOwner
from pabal.relay.callback_url import strip_callback_url
from pabal.relay.delivery.lane import LANE, ClaimedMessage, MessagePollRequest
from pabal.relay.delivery.poll import ack_messages, extend_message_leases, nack_messages, queue_unreceived
from pabal.relay.delivery.stream import format_rfc3339, to_epoch_ms
from pabal.web.auth import authenticate_relay
from pabal.web.encoded_response import EncodedJsonResponse
from pabal.web.field_types import CursorText, IdText, TimeText
from pabal.web.request import RequestContext
from pabal.web.route import ErrorFormat, RequestBody, RequestQuery, ResponseBody, Route
from pabal.web.server.connection import UNACKNOWLEDGED_TIMEOUT, detect_dead_peer, find_connection
from pabal.web.sliced_encoding import encode_in_slices

MAX_WAIT_SECONDS, MAX_WAIT_MS, MIN_WAIT_MS = 30, 30_000, 100
RELAY_LIMIT_PERIOD = timedelta(minutes=1)
POLL_ACKNOWLEDGE_TIMEOUT = UNACKNOWLEDGED_TIMEOUT.total_seconds() + 5
"""Seconds after which the messages of a response return to the queue. The kernel ends a dead connection before."""

MessageIds = Annotated[list[IdText], Meta(min_length=1, max_length=100)]
MessageLeaseSeconds = Annotated[int, Meta(ge=5, le=900)]


class RelayMessageQuery(RequestQuery, frozen=True):
    """Number of messages, how long to wait for the first, and the length of the lease in seconds.

    `wait` is 0, or 1 to 30 seconds, or 100 to 30000 milliseconds.
    """

    limit: Annotated[int, Meta(ge=1, le=100)] = 10
    wait: Annotated[int, Meta(ge=0, le=MAX_WAIT_MS)] = 0
    lease: MessageLeaseSeconds = 60
    cursor: CursorText | None = None
    received: UUID | None = None

    @property
    def wait_timeout(self) -> timedelta:
        if self.wait <= MAX_WAIT_SECONDS:
            return timedelta(seconds=self.wait)
        if self.wait < MIN_WAIT_MS:
            raise Invalid.of_field("wait", "must be 0, or 1 to 30 seconds, or 100 to 30000 milliseconds")
        return timedelta(milliseconds=self.wait)


class RelayMessageIdsBody(RequestBody, frozen=True, rename="camel"):
    """The ids of messages."""

    message_ids: MessageIds


class RelayMessageExtendBody(RequestBody, frozen=True, rename="camel"):
    """The ids of messages, and the new length of their leases in seconds from now."""

    message_ids: MessageIds
    lease: MessageLeaseSeconds = 60


class RelayMessageView(ResponseBody, frozen=True, rename="camel"):
    """A fetched message. `payload` is a deprecated alias of `kakaoPayload`; `timestamp` is in epoch milliseconds."""

    id: str
    conversation_key: str
    timestamp: int
    kakao_payload: dict[str, Any]
    payload: dict[str, Any]
    normalized: dict[str, Any]
    callback_expires_at: int | None
    delivery_count: int
    created_at: TimeText


class RelayMessagePage(ResponseBody, frozen=True, rename="camel"):
    messages: list[RelayMessageView]
    cursor: str | None
    has_more: bool


class RelayMessageAckView(ResponseBody, frozen=True):
    acknowledged: int
    requested: int


class RelayMessageNackView(ResponseBody, frozen=True):
    returned: int
    requested: int


class RelayMessageExtendView(ResponseBody, frozen=True):
    extended: int
    requested: int


class RelayMessageResponse(EncodedJsonResponse):
    """Messages for a poll. `on_sent` is called with whether the client got them, as soon as that is known."""

    def __init__(self, body: bytes, request: Request, on_sent: Callable[[Awaitable[bool]], None]) -> None:
        super().__init__(body, 200)
        self._request = request
        self._on_sent = on_sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = find_connection(self._request)
        if connection.transport:
            detect_dead_peer(connection.transport)
        is_sent = False
        try:
            await super().__call__(scope, receive, send)
            is_sent = connection.was_open
        finally:
            self._on_sent(connection.wait_until_acknowledged(is_sent=is_sent, timeout=POLL_ACKNOWLEDGE_TIMEOUT))


async def get_relay_messages(
    hub: Hub, context: RequestContext, owner: AccountOwner, query: RelayMessageQuery
) -> Response:
    """Fetch messages, oldest first. With `wait`, the request waits for the first message.

    A message that is not acknowledged or answered before its lease ends is delivered again; if its response did not
    arrive, at once. A response has fewer than `limit` messages if their payloads reach 2 MB.
    """
    request = MessagePollRequest(owner.account_id, f"poll:{owner.token_id}", timedelta(seconds=query.lease))
    timeout = query.wait_timeout
    async with hub.autocommit() as tx:
        await limits.consume_rate_limit(tx, relay_request_limit(owner), str(owner.account_id))
        if query.received:
            await queue_unreceived(tx, owner.account_id, request.holder, query.received)
    messages = await context.cancel_on_disconnect(hub.relay.long_poll.poll(request, query.limit, timeout))
    if messages and timeout:
        await release_messages_if_revoked(hub, context, messages)
    hub.relay.metrics.messages_delivered.add(len(messages))
    cursor = str(messages[-1].id) if messages else None
    page = RelayMessagePage(
        [relay_message_view(message) for message in messages], cursor, has_more=len(messages) == query.limit
    )
    content = await encode_in_slices(page, "messages")
    if not messages:
        return EncodedJsonResponse(content, 200)
    return RelayMessageResponse(
        content, context.request, lambda delivered: hub.relay.long_poll.release_unless(delivered, messages)
    )


async def release_messages_if_revoked(hub: Hub, context: RequestContext, messages: list[ClaimedMessage]) -> None:
    """Release the messages if the token was revoked while the request waited."""
    try:
        await authenticate_relay(context.request, hub)
    except PabalError:
        async with hub.settle_db.transaction() as tx:
            await LANE.release(tx, messages)
        raise


async def post_relay_messages_ack(hub: Hub, owner: AccountOwner, body: RelayMessageIdsBody) -> RelayMessageAckView:
    """Acknowledge messages. A reply may still follow."""
    async with hub.settle_db.autocommit() as tx:
        acked = await ack_messages(tx, owner.account_id, parse_message_ids(body.message_ids))
    hub.relay.stream_registry.remove_in_flight(owner.account_id, acked)
    return RelayMessageAckView(len(acked), len(body.message_ids))


async def post_relay_messages_nack(hub: Hub, owner: AccountOwner, body: RelayMessageIdsBody) -> RelayMessageNackView:
    """Return messages to the queue. They are delivered again at once."""
    async with hub.settle_db.autocommit() as tx:
        returned = await nack_messages(tx, owner.account_id, parse_message_ids(body.message_ids))
    hub.relay.stream_registry.remove_in_flight(owner.account_id, returned)
    return RelayMessageNackView(len(returned), len(body.message_ids))


async def post_relay_messages_extend(
    hub: Hub, owner: AccountOwner, body: RelayMessageExtendBody
) -> RelayMessageExtendView:
    """Extend the leases of messages."""
    async with hub.settle_db.autocommit() as tx:
        extended = await extend_message_leases(
            tx, owner.account_id, parse_message_ids(body.message_ids), timedelta(seconds=body.lease)
        )
    return RelayMessageExtendView(len(extended), len(body.message_ids))


def relay_request_limit(owner: AccountOwner) -> RateLimit:
    return RateLimit("relay requests", owner.rate_limit, RELAY_LIMIT_PERIOD)


def parse_message_ids(texts: list[str]) -> list[UUID]:
    """The valid ids. Anything else matches no message."""
    ids: dict[UUID, None] = {}
    for text in texts:
        try:
            ids[msgspec.convert(text, UUID)] = None
        except msgspec.ValidationError:
            continue
    return [*ids]


def relay_message_view(message: ClaimedMessage) -> RelayMessageView:
    payload = strip_callback_url(message.kakao_payload)
    return RelayMessageView(
        id=str(message.id),
        conversation_key=message.conversation_key,
        timestamp=to_epoch_ms(message.created_at),
        kakao_payload=payload,
        payload=payload,
        normalized=message.normalized,
        callback_expires_at=to_epoch_ms(message.callback_expires_at) if message.callback_expires_at else None,
        delivery_count=message.attempt,
        created_at=format_rfc3339(message.created_at),
    )


ROUTES = tuple(
    Route(
        method,
        f"{prefix}/messages{suffix}",
        handler,
        relay_auth=True,
        no_head=handler is get_relay_messages,
        response=RelayMessagePage if handler is get_relay_messages else None,
        may_raise=may_raise,
        error_format=ErrorFormat.RELAY,
        tag="relay",
    )
    for prefix in ("/openclaw", "/v1")
    for method, suffix, handler, may_raise in (
        ("GET", "", get_relay_messages, (RateLimited,)),
        ("POST", "/ack", post_relay_messages_ack, ()),
        ("POST", "/nack", post_relay_messages_nack, ()),
        ("POST", "/extend", post_relay_messages_extend, ()),
    )
)
