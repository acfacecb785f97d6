"""The reply endpoint: a bot's reply is sent to Kakao before the request returns."""

from dataclasses import replace
from typing import Any, cast
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
from pabal.core.ids import new_id
from pabal.hub import Hub
from pabal.relay.auth import hash_relay_secret
from pabal.relay.reply.fit import fit_skill_response
from pabal.relay.reply.recorded import TextPart
from pabal.relay.reply.reply import BotReply, encode_skill_response
from pabal.relay.reply.send import DeliveredReply, KeptReply
from pabal.relay.reply.validate import validate_skill_response
from pabal.web.auth import bearer_token
from pabal.web.endpoint import parse_body
from pabal.web.field_types import ConversationKey, IdText
from pabal.web.request import RequestContext
from pabal.web.route import ErrorFormat, RequestBody, ResponseBody, Route
from pabal.web.untyped_json import decode_untyped_json


class RelayReplyBody(RequestBody, frozen=True, rename="camel", forbid_unknown_fields=False):
    """A message id and a skill response, version 2.0, or a text. `conversationKey`, if given, must be the message's."""

    message_id: IdText
    response: msgspec.Raw
    conversation_key: ConversationKey | None = None


class RelayReplyView(ResponseBody, frozen=True, rename="camel"):
    """Kakao accepted the reply at `deliveredAt` (epoch milliseconds).

    If `callbackSent` is false, the reply is stored and shown to the user later; `deliveredAt` is missing then.
    """

    success: bool
    outbound_message_id: UUID
    callback_sent: bool
    delivered_at: int | msgspec.UnsetType = msgspec.UNSET


MAX_REPLY_BYTES = 262_144
REPLY_DECODER = msgspec.json.Decoder(RelayReplyBody)


async def post_relay_reply(hub: Hub, context: RequestContext) -> RelayReplyView:
    """Reply to a message through its Kakao callback, which can be used once.

    `response` is a skill response or a text. A text of more than 1,000 characters is split into up to three bubbles and
    the rest is kept with it like further replies; a long label of a quick reply is shortened. A response that exceeds
    another limit of Kakao is refused without using up the callback. A reply after the callback expired is kept for half
    an hour and shown before the reply to the user's next message. Further replies to the same message are kept
    likewise, with `callbackSent` false. The same reply again gets the answer of the first.
    """
    token_hash = hash_relay_secret(bearer_token(context.request.headers.get("authorization")))
    try:
        body = await parse_body(context.request, REPLY_DECODER, min(hub.settings.body_limit, MAX_REPLY_BYTES), b"")
        reply = decode_reply(token_hash, body)
    except Invalid as error:
        await authorize_reply(hub, token_hash)
        raise error from None
    match await hub.relay.replies.send(reply):
        case DeliveredReply(reply_id, delivered_at):
            return RelayReplyView(
                success=True, outbound_message_id=reply_id, callback_sent=True, delivered_at=delivered_at
            )
        case KeptReply(reply_id):
            return RelayReplyView(success=True, outbound_message_id=reply_id, callback_sent=False)


def decode_reply(token_hash: str, body: RelayReplyBody) -> BotReply:
    response_json = bytes(body.response)
    decoded = decode_untyped_json(response_json, "response")
    fitted, rest = fit_skill_response(decoded)
    reply = BotReply(
        token_hash,
        parse_message_id(body.message_id),
        body.conversation_key,
        validate_skill_response(fitted),
        response_json if fitted is decoded else encode_skill_response(cast("dict[str, Any]", fitted)),
    )
    if not rest:
        return reply
    return replace(
        reply, rest=[TextPart(new_id(), validate_skill_response(part), encode_skill_response(part)) for part in rest]
    )


def parse_message_id(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


async def authorize_reply(hub: Hub, token_hash: str) -> None:
    """Raise for an invalid token or a rate limit: these come before errors of the body."""
    try:
        await hub.relay.replies.send(BotReply(token_hash))
    except MessageNotFound:
        return


ROUTES = tuple(
    Route(
        "POST",
        path,
        post_relay_reply,
        relay_auth=True,
        body=RelayReplyBody,
        max_body_bytes=MAX_REPLY_BYTES,
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
