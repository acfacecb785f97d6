"""Reply: a bot's answer to a message, sent to Kakao while somebody waits for it."""

from typing import Any
from uuid import UUID

import msgspec

from pabal.api.bind import from_body
from pabal.api.credentials import bearer
from pabal.api.door import Answer, Body, Door, Shape
from pabal.api.visit import Visit
from pabal.core.errors import (
    AlreadyReplied,
    CallbackExpired,
    CallbackFailed,
    CallbackUnknown,
    Invalid,
    MessageNotFound,
    NotPaired,
    TooMany,
)
from pabal.relay import reply
from pabal.relay.bearer import digest
from pabal.relay.response import check
from pabal.wiring import Hub


class ReplyDraft(Body, frozen=True, rename="camel", forbid_unknown_fields=False):
    """Which message, and a skill response of version 2.0. The conversation, if it is said, must be the message's."""

    message_id: str
    response: msgspec.Raw
    conversation_key: str | None = None


class Replied(Answer, frozen=True, rename="camel"):
    """Kakao took it, at `deliveredAt` (epoch ms)."""

    success: bool
    delivered_at: int
    outbound_message_id: UUID
    callback_sent: bool


DECODER = msgspec.json.Decoder(ReplyDraft)


async def send_reply(hub: Hub, visit: Visit) -> Replied:
    """Answer a message, once, through the callback Kakao gave for it.

    A response that breaks one of Kakao's limits is refused before the callback is spent. An answer that comes after the
    callback died is kept for half an hour, and shown in front of the answer to the user's next message.
    """
    token = digest(bearer(visit.request.headers.get("authorization")))
    try:
        answer = read(token, await from_body(visit.request, DECODER, hub.settings.body_limit, b""))
    except Invalid as mistakes:
        await see_who(hub, token)
        raise mistakes from None
    sent = await hub.relay.replies.answer(answer)
    return Replied(success=True, delivered_at=sent.at, outbound_message_id=sent.reply, callback_sent=True)


def read(token: str, draft: ReplyDraft) -> reply.Answer:
    written = bytes(draft.response)
    try:
        decoded: Any = msgspec.json.decode(written)
    except RecursionError:
        raise Invalid.one("response", "is nested too deeply") from None
    except msgspec.DecodeError as error:  # a number no machine can hold is found only here
        raise Invalid.one("response", f"is not JSON: {error}") from None
    return reply.Answer(token, id_of(draft.message_id), draft.conversation_key, check(decoded), written)


def id_of(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


async def see_who(hub: Hub, token: str) -> None:
    """Whoever is nobody, or may not, or asks too often, is told that first, whatever they brought."""
    try:
        await hub.relay.replies.answer(reply.Answer(token))
    except MessageNotFound:
        return


DOORS = tuple(
    Door(
        "POST",
        path,
        send_reply,
        bearer=True,
        takes=ReplyDraft,
        may_raise=(
            NotPaired,
            MessageNotFound,
            CallbackExpired,
            AlreadyReplied,
            CallbackFailed,
            CallbackUnknown,
            TooMany,
        ),
        shape=Shape.RELAY,
        tag="relay",
    )
    for path in ("/openclaw/reply", "/v1/reply")
)
