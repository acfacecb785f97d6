"""Messages for bots that fetch: claim some, then say what became of them."""

from datetime import timedelta
from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import Meta

from pabal import limits
from pabal.core.errors import Invalid, PabalError, RateLimited
from pabal.hub import Hub
from pabal.limits import RateLimit
from pabal.relay.auth import AccountOwner
from pabal.relay.delivery.lane import LANE, ClaimedMessage, MessagePollRequest
from pabal.relay.delivery.poll import ack_messages, extend_message_leases, nack_messages
from pabal.relay.delivery.stream import serialize_message, to_epoch_ms
from pabal.web.auth import authenticate_relay
from pabal.web.request import RequestContext
from pabal.web.route import ErrorFormat, RequestBody, RequestQuery, ResponseBody, Route

MAX_WAIT_SECONDS, MAX_WAIT_MS, MIN_WAIT_MS = 30, 30_000, 100
RELAY_LIMIT_PERIOD = timedelta(minutes=1)

MessageIds = Annotated[list[str], Meta(min_length=1, max_length=100)]
MessageLeaseSeconds = Annotated[int, Meta(ge=5, le=900)]


class RelayMessageQuery(RequestQuery, frozen=True):
    """How many messages, how long to wait for the first, and how long to hold them.

    `wait` is 0, or 1 to 30 seconds, or 100 to 30000 milliseconds.
    """

    limit: Annotated[int, Meta(ge=1, le=100)] = 10
    wait: Annotated[int, Meta(ge=0, le=MAX_WAIT_MS)] = 0
    lease: MessageLeaseSeconds = 60
    cursor: str | None = None

    @property
    def wait_timeout(self) -> timedelta:
        if self.wait <= MAX_WAIT_SECONDS:
            return timedelta(seconds=self.wait)
        if self.wait < MIN_WAIT_MS:
            raise Invalid.of_field("wait", "is 0, or 1 to 30 seconds, or 100 to 30000 milliseconds")
        return timedelta(milliseconds=self.wait)


class RelayMessageIdsBody(RequestBody, frozen=True, rename="camel"):
    """Which messages."""

    message_ids: MessageIds


class RelayMessageExtendBody(RequestBody, frozen=True, rename="camel"):
    """Which messages to hold longer, and for how many seconds from now."""

    message_ids: MessageIds
    lease: MessageLeaseSeconds = 60


class RelayMessageView(ResponseBody, frozen=True, rename="camel"):
    """A message in the bot's hands. `payload` is `kakaoPayload` by its older name; times with `timestamp` in ms."""

    id: str
    conversation_key: str
    timestamp: int
    kakao_payload: dict[str, Any]
    payload: dict[str, Any]
    normalized: dict[str, Any]
    callback_expires_at: int | None
    delivery_count: int
    created_at: str


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


async def get_relay_messages(
    hub: Hub, context: RequestContext, owner: AccountOwner, query: RelayMessageQuery
) -> RelayMessagePage:
    """Fetch messages that wait, the oldest first, or the first that comes if asked to wait.

    They come back when the lease ends.
    """
    who = MessagePollRequest(owner.account_id, f"poll:{owner.token_id}", timedelta(seconds=query.lease))
    patience = query.wait_timeout
    async with hub.autocommit() as tx:
        await limits.consume_rate_limit(tx, relay_request_limit(owner), str(owner.account_id))
    found = await context.cancel_on_disconnect(hub.relay.long_poll.poll(who, query.limit, patience))
    if found and patience:
        await release_messages_if_revoked(hub, context, found)
    hub.relay.metrics.messages_delivered.add(len(found))
    last = str(found[-1].id) if found else None
    return RelayMessagePage(
        [relay_message_view(message) for message in found], last, has_more=len(found) == query.limit
    )


async def release_messages_if_revoked(hub: Hub, context: RequestContext, messages: list[ClaimedMessage]) -> None:
    """A token that died while its bearer waited brings nothing any more."""
    try:
        await authenticate_relay(context.request, hub)
    except PabalError:
        async with hub.transaction() as tx:
            await LANE.release(tx, messages)
        raise


async def post_relay_messages_ack(hub: Hub, owner: AccountOwner, body: RelayMessageIdsBody) -> RelayMessageAckView:
    """Say that messages are done with; a reply may still follow."""
    async with hub.autocommit() as tx:
        done = await ack_messages(tx, owner.account_id, parse_message_ids(body.message_ids))
    hub.relay.stream_registry.remove_in_flight(owner.account_id, done)
    return RelayMessageAckView(len(done), len(body.message_ids))


async def post_relay_messages_nack(hub: Hub, owner: AccountOwner, body: RelayMessageIdsBody) -> RelayMessageNackView:
    """Give messages back at once."""
    async with hub.autocommit() as tx:
        back = await nack_messages(tx, owner.account_id, parse_message_ids(body.message_ids))
    hub.relay.stream_registry.remove_in_flight(owner.account_id, back)
    return RelayMessageNackView(len(back), len(body.message_ids))


async def post_relay_messages_extend(
    hub: Hub, owner: AccountOwner, body: RelayMessageExtendBody
) -> RelayMessageExtendView:
    """Hold messages longer."""
    async with hub.autocommit() as tx:
        held = await extend_message_leases(
            tx, owner.account_id, parse_message_ids(body.message_ids), timedelta(seconds=body.lease)
        )
    return RelayMessageExtendView(len(held), len(body.message_ids))


def relay_request_limit(owner: AccountOwner) -> RateLimit:
    return RateLimit("relay requests", owner.rate_limit, RELAY_LIMIT_PERIOD)


def parse_message_ids(texts: list[str]) -> list[UUID]:
    """Those that can be ids at all; the others are nobody's messages."""
    ids: dict[UUID, None] = {}
    for text in texts:
        try:
            ids[msgspec.convert(text, UUID)] = None
        except msgspec.ValidationError:
            continue
    return [*ids]


def relay_message_view(message: ClaimedMessage) -> RelayMessageView:
    told = serialize_message(message)
    return RelayMessageView(
        id=told["id"],
        conversation_key=told["conversationKey"],
        timestamp=to_epoch_ms(message.created_at),
        kakao_payload=told["kakaoPayload"],
        payload=told["kakaoPayload"],
        normalized=told["normalized"],
        callback_expires_at=told["callbackExpiresAt"],
        delivery_count=told["deliveryCount"],
        created_at=told["createdAt"],
    )


ROUTES = tuple(
    Route(
        method,
        f"{family}/messages{more}",
        handler,
        relay_auth=True,
        no_head=handler is get_relay_messages,
        may_raise=may_raise,
        error_format=ErrorFormat.RELAY,
        tag="relay",
    )
    for family in ("/openclaw", "/v1")
    for method, more, handler, may_raise in (
        ("GET", "", get_relay_messages, (RateLimited,)),
        ("POST", "/ack", post_relay_messages_ack, ()),
        ("POST", "/nack", post_relay_messages_nack, ()),
        ("POST", "/extend", post_relay_messages_extend, ()),
    )
)
