"""Parse a webhook: the user, the channel, the text, and the id by which duplicates are recognised."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from pabal.core.errors import Invalid
from pabal.relay.webhook.blocks import MessageBlock, read_message_blocks

DEFAULT_CHANNEL = "default"
MAX_KEY_LENGTH = 512
"""Characters of a channel id or user key. Kakao's have about 60."""
MAX_EVENT_ID_LENGTH = 256
MAX_CALLBACK_URL_LENGTH = 2048
MAX_UTTERANCE_LENGTH = 20_000
"""Characters of a message. KakaoTalk allows 10,000."""
BODY_HASH_PREFIX = "payload:"
"""How an event id begins that is the hash of the whole body."""


class KakaoStruct(msgspec.Struct, frozen=True):
    """The parts of Kakao's payload that the hub reads. The bot gets the whole payload unchanged."""


class KakaoUserProperties(KakaoStruct, frozen=True):
    plusfriend_user_key: str | None = msgspec.field(default=None, name="plusfriendUserKey")


class KakaoUser(KakaoStruct, frozen=True):
    id: str | None = None
    properties: KakaoUserProperties | None = None


class KakaoUserRequest(KakaoStruct, frozen=True):
    user: KakaoUser | None = None
    utterance: str | None = None
    callback_url: str | None = msgspec.field(default=None, name="callbackUrl")
    event_id: str | None = msgspec.field(default=None, name="eventId")
    params: Any = None


class KakaoBot(KakaoStruct, frozen=True):
    id: str | None = None


class KakaoPayload(KakaoStruct, frozen=True):
    user_request: KakaoUserRequest = msgspec.field(name="userRequest")
    bot: KakaoBot | None = None
    action: Any = None


@dataclass(frozen=True, slots=True)
class InboundPayload:
    """A parsed webhook. `raw_json` is its body unchanged."""

    channel: str
    user_key: str
    text: str
    callback_url: str | None = field(repr=False)
    source_event_id: str
    raw_json: str = field(repr=False)
    blocks: Sequence[MessageBlock] = ()

    @property
    def conversation_key(self) -> str:
        """Channel and user. A user key may contain colons, a channel may not: split on the first."""
        return f"{self.channel}:{self.user_key}"

    @property
    def has_hashed_text(self) -> bool:
        """Whether the event id is a hash of the text, which could be guessed."""
        return self.source_event_id.startswith(BODY_HASH_PREFIX)

    @property
    def normalized(self) -> dict[str, Any]:
        """What the bot gets beside Kakao's payload. `blocks` only if the message has images or the like."""
        fields: dict[str, Any] = {"userId": self.user_key, "text": self.text, "channelId": self.channel}
        return fields | {"blocks": self.blocks} if self.blocks else fields


def parse_inbound_payload(payload: KakaoPayload, raw: str, time_bucket: int) -> InboundPayload:
    """Extract user, channel and text; raise Invalid without a user.

    `time_bucket` is the current time in units of ten seconds. It is part of the id of webhooks that carry none.
    """
    request, bot = payload.user_request, payload.bot
    user = request.user
    key = ((user.properties and user.properties.plusfriend_user_key) or user.id) if user else None
    if not key:
        raise Invalid.of_field(
            "userRequest.user.properties.plusfriendUserKey", "is missing, and so is userRequest.user.id"
        )
    channel = (bot and bot.id) or DEFAULT_CHANNEL
    if ":" in channel:
        raise Invalid.of_field("bot.id", "must not contain a colon")
    for name, value, limit in (
        ("bot.id", channel, MAX_KEY_LENGTH),
        ("userRequest.user", key, MAX_KEY_LENGTH),
        ("userRequest.utterance", request.utterance, MAX_UTTERANCE_LENGTH),
        ("userRequest.callbackUrl", request.callback_url, MAX_CALLBACK_URL_LENGTH),
        ("userRequest.eventId", request.event_id, MAX_EVENT_ID_LENGTH),
    ):
        if value and len(value) > limit:
            raise Invalid.of_field(name, f"is longer than {limit} characters")
    return InboundPayload(
        channel=channel,
        user_key=key,
        text=request.utterance or "",
        callback_url=request.callback_url or None,
        source_event_id=derive_source_event_id(request, key, raw, time_bucket),
        raw_json=raw,
        blocks=read_message_blocks(request.params, payload.action),
    )


def derive_source_event_id(request: KakaoUserRequest, user_key: str, raw: str, time_bucket: int) -> str:
    """The id that a repeated webhook shares: from Kakao's event id, else the callback URL, else the whole body."""
    if request.event_id:
        return hash_parts("event", user_key, request.event_id)
    if request.callback_url:
        return hash_parts("callback", user_key, request.callback_url)
    return hash_parts("payload", user_key, raw, str(time_bucket))


def hash_parts(kind: str, *parts: str) -> str:
    data = "\0".join((*parts, "")).encode("utf-8", "surrogatepass")
    return f"{kind}:{hashlib.sha256(data).hexdigest()}"
