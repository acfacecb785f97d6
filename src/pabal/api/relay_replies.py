"""Reply: a bot's answer to a message, sent to Kakao while somebody waits for it."""

from typing import Any
from uuid import UUID

import msgspec

from pabal.core.errors import (
    AlreadyReplied,
    CallbackExpired,
    CallbackFailed,
    CallbackUnconfirmed,
    Invalid,
    MessageNotFound,
    RateLimited,
    SessionNotPaired,
)
from pabal.hub import Hub
from pabal.relay.auth import hash_relay_secret
from pabal.relay.reply.reply import BotReply
from pabal.relay.reply.validate import validate_skill_response
from pabal.web.auth import bearer_token
from pabal.web.endpoint import parse_body
from pabal.web.request import RequestContext
from pabal.web.route import ErrorFormat, RequestBody, ResponseBody, Route


class RelayReplyBody(RequestBody, frozen=True, rename="camel", forbid_unknown_fields=False):
    """Which message, and a skill response of version 2.0. The conversation, if it is said, must be the message's."""

    message_id: str
    response: msgspec.Raw
    conversation_key: str | None = None


class RelayReplyView(ResponseBody, frozen=True, rename="camel"):
    """Kakao took it, at `deliveredAt` (epoch ms)."""

    success: bool
    delivered_at: int
    outbound_message_id: UUID
    callback_sent: bool


REPLY_DECODER = msgspec.json.Decoder(RelayReplyBody)


async def post_relay_reply(hub: Hub, context: RequestContext) -> RelayReplyView:
    """Answer a message, once, through the callback Kakao gave for it.

    A response that breaks one of Kakao's limits is refused before the callback is spent. An answer that comes after the
    callback died is kept for half an hour, and shown in front of the answer to the user's next message.
    """
    token = hash_relay_secret(bearer_token(context.request.headers.get("authorization")))
    try:
        answer = decode_reply(token, await parse_body(context.request, REPLY_DECODER, hub.settings.body_limit, b""))
    except Invalid as mistakes:
        await authorize_reply(hub, token)
        raise mistakes from None
    sent = await hub.relay.replies.send(answer)
    return RelayReplyView(
        success=True, delivered_at=sent.delivered_at_ms, outbound_message_id=sent.reply_id, callback_sent=True
    )


def decode_reply(token: str, body: RelayReplyBody) -> BotReply:
    written = bytes(body.response)
    try:
        decoded: Any = msgspec.json.decode(written)
    except RecursionError:
        raise Invalid.of_field("response", "is nested too deeply") from None
    except msgspec.DecodeError as error:  # a number no machine can hold is found only here
        raise Invalid.of_field("response", f"is not JSON: {error}") from None
    return BotReply(
        token, parse_message_id(body.message_id), body.conversation_key, validate_skill_response(decoded), written
    )


def parse_message_id(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


async def authorize_reply(hub: Hub, token: str) -> None:
    """Whoever is nobody, or may not, or asks too often, is told that first, whatever they brought."""
    try:
        await hub.relay.replies.send(BotReply(token))
    except MessageNotFound:
        return


ROUTES = tuple(
    Route(
        "POST",
        path,
        post_relay_reply,
        relay_auth=True,
        body=RelayReplyBody,
        may_raise=(
            SessionNotPaired,
            MessageNotFound,
            CallbackExpired,
            AlreadyReplied,
            CallbackFailed,
            CallbackUnconfirmed,
            RateLimited,
        ),
        error_format=ErrorFormat.RELAY,
        tag="relay",
    )
    for path in ("/openclaw/reply", "/v1/reply")
)
