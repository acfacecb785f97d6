"""A webhook, read: who wrote what on which channel, and what makes a repeat of it a repeat."""

import hashlib
from dataclasses import dataclass, field
from typing import Any

import msgspec

from pabal.core.errors import Invalid

DEFAULT_CHANNEL = "default"
MOST_KEY = 512
"""Characters of a channel or user key; Kakao's have some sixty."""


class Unknowns(msgspec.Struct, frozen=True):
    """The parts of Kakao's payload that mean something here. Everything else is passed on untouched."""


class Properties(Unknowns, frozen=True):
    plusfriend_user_key: str | None = msgspec.field(default=None, name="plusfriendUserKey")


class User(Unknowns, frozen=True):
    id: str | None = None
    properties: Properties | None = None


class UserRequest(Unknowns, frozen=True):
    user: User | None = None
    utterance: str | None = None
    callback_url: str | None = msgspec.field(default=None, name="callbackUrl")
    event_id: str | None = msgspec.field(default=None, name="eventId")


class Bot(Unknowns, frozen=True):
    id: str | None = None


class Payload(Unknowns, frozen=True):
    user_request: UserRequest = msgspec.field(name="userRequest")
    bot: Bot | None = None


@dataclass(frozen=True, slots=True)
class Arrival:
    """What one webhook brought. `payload` is its JSON as it came."""

    channel: str
    user: str
    text: str
    callback_url: str | None = field(repr=False)
    source_event_id: str
    payload: str = field(repr=False)

    @property
    def key(self) -> str:
        """The conversation: split on the first colon only."""
        return f"{self.channel}:{self.user}"

    @property
    def normalized(self) -> dict[str, Any]:
        return {"userId": self.user, "text": self.text, "channelId": self.channel}


def read(payload: Payload, raw: str, ten_seconds: int) -> Arrival:
    """Find who wrote and what; raises Invalid when nobody did. `ten_seconds` counts the time in tens of seconds."""
    request, bot = payload.user_request, payload.bot
    user = request.user
    key = ((user.properties and user.properties.plusfriend_user_key) or user.id) if user else None
    if not key:
        raise Invalid.one("userRequest.user.properties.plusfriendUserKey", "is missing, and so is userRequest.user.id")
    channel = (bot and bot.id) or DEFAULT_CHANNEL
    if ":" in channel:
        raise Invalid.one("bot.id", "has a colon in it")
    for name, value in (("bot.id", channel), ("userRequest.user", key)):
        if len(value) > MOST_KEY:
            raise Invalid.one(name, f"is longer than {MOST_KEY} characters")
    return Arrival(
        channel=channel,
        user=key,
        text=request.utterance or "",
        callback_url=request.callback_url or None,
        source_event_id=repeats_as(request, key, raw, ten_seconds),
        payload=raw,
    )


def repeats_as(request: UserRequest, user: str, raw: str, ten_seconds: int) -> str:
    """What a repeat of this webhook shares with it: Kakao's own id, else its one-time callback, else all of it."""
    if request.event_id:
        return digest("event", user, request.event_id)
    if request.callback_url:
        return digest("callback", user, request.callback_url)
    return digest("payload", user, raw, str(ten_seconds))


def digest(kind: str, *parts: str) -> str:
    hashed = hashlib.sha256()
    for part in parts:
        hashed.update(part.encode("utf-8", "surrogatepass") + b"\0")
    return f"{kind}:{hashed.hexdigest()}"
