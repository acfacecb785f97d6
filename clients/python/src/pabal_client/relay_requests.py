"""The relay's API for bots: messages, requests and server-sent events, without any I/O."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from random import random
from typing import Any

import msgspec

from pabal_client.errors import HubUnavailableError
from pabal_client.transport import (
    MAX_RETRY_AFTER,
    RETRYABLE_STATUSES,
    Flow,
    HubResponse,
    SendRequest,
    SleepFor,
    decode_response,
    raise_for_response,
    response_retry_delay,
    with_bearer_token,
)

ReplyContent = str | Mapping[str, Any]
"""A text, or a Kakao skill response."""

MAX_BOT_ATTEMPTS = 8
"""Attempts of a request of a bot, in about 23 seconds: less than Kakao's callback lives."""
MIN_RETRY_DELAY = 0.1
"""Seconds between two attempts, also if the hub asks for none: some requests are repeated for ever."""
MAX_EVENT_BYTES = 8 * 1024 * 1024
EVENT_END = b"\n\n"


class ChatMessage(msgspec.Struct, frozen=True, rename="camel"):
    """A message of a user. Reply before `callback_expires_at`; a later reply is shown with the user's next message.

    `kakao_payload` is what Kakao sent, without the callback URL. `normalized` has what the hub read from it.
    """

    id: str
    conversation_key: str
    normalized: dict[str, Any]
    kakao_payload: dict[str, Any] = {}
    created_at: datetime | None = None
    callback_expires_at: datetime | None = None
    delivery_count: int = 1

    @property
    def text(self) -> str:
        """What the user wrote; empty for an image."""
        return str(self.normalized.get("text") or "")

    @property
    def user_id(self) -> str:
        return str(self.normalized.get("userId") or "")


class NewSession(msgspec.Struct, frozen=True, rename="camel"):
    """A session that a user joins by sending the pairing code in the chat."""

    session_token: str
    pairing_code: str

    def __repr__(self) -> str:
        return "NewSession(…)"


class AckResult(msgspec.Struct, frozen=True):
    acknowledged: int


class SentReply(msgspec.Struct, frozen=True, rename="camel"):
    callback_sent: bool = True


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One server-sent event of the hub."""

    name: str
    data: dict[str, Any] = field(repr=False)
    event_id: str = ""


class EventParser:
    """Parses server-sent events from chunks. Only LF ends a line: JSON may contain other line separators unescaped."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, chunk: bytes) -> Iterator[StreamEvent]:
        """The events that the chunk completes."""
        *blocks, self._buffer = (self._buffer + chunk).split(EVENT_END)
        if len(self._buffer) > MAX_EVENT_BYTES:
            raise HubUnavailableError("the stream is not from a hub: an event does not end")
        for block in blocks:
            lines = (line.partition(b": ") for line in block.split(b"\n") if not line.startswith(b":"))
            fields = {name: value for name, _, value in lines}
            if b"data" in fields:
                data = decode_response(dict[str, Any], fields[b"data"])
                name, event_id = fields.get(b"event", b"message"), fields.get(b"id", b"")
                yield StreamEvent(name.decode(errors="replace"), data, event_id.decode("ascii", errors="replace"))


def decode_message(data: Mapping[str, Any]) -> ChatMessage:
    """The message of an event. Its deadline is sent in epoch milliseconds."""
    deadline = data.get("callbackExpiresAt")
    seconds = deadline / 1000 if isinstance(deadline, int | float) else None
    try:
        return msgspec.convert({**data, "callbackExpiresAt": seconds}, ChatMessage, strict=False)
    except msgspec.ValidationError as error:
        raise HubUnavailableError(f"the message is not from a hub: {error}") from None


def create_session_flow() -> Flow[NewSession]:
    request = SendRequest("POST", "/v1/sessions/create", b"{}", headers={"content-type": "application/json"})
    response, _ = yield from repeat_flow(request)
    raise_for_response(response)
    return decode_response(NewSession, response.body)


def start_turn_flow(token: str, message_id: str) -> Flow[bool]:
    """Acknowledge a message; return whether its turn may start.

    The hub never delivers an acknowledged message again, so a bot that crashes in a turn does not start a second one.
    If nothing is acknowledged, the message has ended or another process has it, unless a lost response was ours. An
    unavailable hub is tried for ever: it believes that this bot has the message, and does not deliver it again.
    """
    request = bot_request(token, "/v1/messages/ack", {"messageIds": [message_id]})
    response, is_repeated = yield from repeat_flow(request, max_attempts=None)
    raise_for_response(response)
    return decode_response(AckResult, response.body).acknowledged > 0 or is_repeated


def reply_flow(token: str, message_id: str, reply: ReplyContent) -> Flow[bool]:
    """Reply to a message; return whether the user sees it now. Sending the same reply twice has no effect."""
    response, _ = yield from repeat_flow(bot_request(token, "/v1/reply", {"messageId": message_id, "response": reply}))
    raise_for_response(response)
    return decode_response(SentReply, response.body).callback_sent


def bot_request(token: str, path: str, body: Mapping[str, Any]) -> SendRequest:
    return with_bearer_token(SendRequest("POST", path, msgspec.json.encode(body)), token)


def repeat_flow(request: SendRequest, max_attempts: int | None = MAX_BOT_ATTEMPTS) -> Flow[tuple[HubResponse, bool]]:
    """Send a request until the hub answers; return the response, and whether an earlier attempt may have succeeded."""
    may_have_succeeded = False
    for attempt in count(1):
        response = yield request
        if not is_repeatable(response) or attempt == max_attempts:
            return response, may_have_succeeded
        may_have_succeeded |= response.status != 429 and not response.is_unsent  # noqa: PLR2004 a refusal of the hub
        delay = response_retry_delay(response, min(attempt, 10), random())  # noqa: S311 jitter, not a secret
        yield SleepFor(min(max(delay, MIN_RETRY_DELAY), MAX_RETRY_AFTER))
    raise AssertionError  # the loop returns


def is_repeatable(response: HubResponse) -> bool:
    """Whether to send a request again. A 502 with a code is the hub's: Kakao refused the reply."""
    if response.status == 502:  # noqa: PLR2004 an HTTP status
        return b'"code"' not in response.body
    return response.status == 0 or response.status in RETRYABLE_STATUSES
