"""Discord API: open the DM channel of a user, send a message to a channel, and map the responses.

Two calls, so no library. Discord libraries wait inside the call when a rate limit applies; here a rate limit is a
result, and the caller decides what waits for it.
"""

import math
import re
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from typing import Any, assert_never, cast

import msgspec

from pabal import __version__
from pabal.core.log import redact_log_text
from pabal.outside.http import HttpClient, HttpResponse, NoResponse, NotSent, NotSentCause
from pabal.queue.outcome import DONE, Dead, Outcome, Retry, Snooze

DISCORD_API_URL = "https://discord.com/api/v10"
DISCORD_TIMEOUT = timedelta(seconds=10)
MAX_PAUSE = timedelta(hours=1)
DEFAULT_PAUSE = timedelta(seconds=5)  # for a rate limit without a duration
HUB_FAULT_PAUSE = timedelta(minutes=1)  # after a fault of the hub, such as a wrong token
DM_LIMIT_PAUSE = timedelta(minutes=10)
MAX_DISCORD_ERROR_LENGTH = 200
MAX_REDACTED_LENGTH = 4096

SNOWFLAKE = re.compile(r"[0-9]{1,20}")
URGENT_COLOR = 0xE03131

NO_MUTUAL_GUILD, CLOSED_DMS, NO_ACCESS, NO_PERMISSION = 50278, 50007, 50001, 50013
UNKNOWN_CHANNEL, UNKNOWN_USER, INVALID_RECIPIENT = 10003, 10013, 50033
ADDRESS_REFUSED_CODES = frozenset(
    {NO_MUTUAL_GUILD, CLOSED_DMS, NO_ACCESS, NO_PERMISSION, UNKNOWN_CHANNEL, UNKNOWN_USER, INVALID_RECIPIENT}
)
"""Error codes about the recipient: the next message would fail too."""
OPENING_DMS_TOO_FAST = 40003


@dataclass(frozen=True, slots=True)
class DiscordResult:
    """The outcome of a call, and what it means for the next calls."""

    outcome: Outcome
    id: str | None = None
    """Of the opened channel or the created message."""
    pause: timedelta | None = None
    """How long to wait before the next call: on this route, or on all routes if `is_global`."""
    is_global: bool = False
    address_refused: bool = False
    """The recipient can never be reached."""
    channel_missing: bool = False
    """The channel does not exist."""


@dataclass(frozen=True, slots=True)
class DiscordErrorBody:
    """The JSON of an error. Without a `code` it does not come from Discord's API."""

    code: int | None = None
    message: str = ""
    retry_after: timedelta | None = None
    is_global: bool = False


class DiscordApi:
    """The two calls, made as a bot."""

    def __init__(
        self, http_client: HttpClient, token: str, api: str = DISCORD_API_URL, time_limit: timedelta = DISCORD_TIMEOUT
    ) -> None:
        self._http_client = http_client
        self._api = api.rstrip("/")
        self._time_limit = time_limit
        self._headers = {
            "authorization": f"Bot {token}",
            "content-type": "application/json",
            "user-agent": f"DiscordBot (pabal, {__version__})",  # the format that Discord requires
        }

    async def open_dm_channel(self, user_id: str) -> DiscordResult:
        """Open the DM channel of a user. Opening it again returns the same channel."""
        if not SNOWFLAKE.fullmatch(user_id):
            return invalid_id_result()
        result = await self._post("/users/@me/channels", {"recipient_id": user_id})
        if result.outcome == DONE and result.id is None:
            return DiscordResult(Retry("Discord did not return the id of the channel", code="unreadable"))
        return result

    async def send_message(
        self, channel_id: str, *, title: str | None, body: str, nonce: str, urgent: bool = False
    ) -> DiscordResult:
        """Send a message. Discord drops repeated messages with the same nonce within a few minutes."""
        if not SNOWFLAKE.fullmatch(channel_id):
            return invalid_id_result()
        embed: dict[str, Any] = {"description": body}
        if title:
            embed["title"] = title
        if urgent:
            embed["color"] = URGENT_COLOR
        return await self._post(
            f"/channels/{channel_id}/messages",
            {"embeds": [embed], "nonce": nonce, "enforce_nonce": True, "allowed_mentions": {"parse": []}},
        )

    async def _post(self, path: str, body: dict[str, Any]) -> DiscordResult:
        result = await self._http_client.post(
            self._api + path, msgspec.json.encode(body), self._headers, time_limit=self._time_limit
        )
        match result:
            case HttpResponse():
                return read_discord_response(result)
            case NotSent(error, NotSentCause.CLIENT):  # a fault of the hub must not spend the attempts
                return DiscordResult(Snooze(f"not sent: {error}", DEFAULT_PAUSE))
            case NotSent(error):
                return DiscordResult(Retry(f"not sent: {error}", code="not_sent"))
            case NoResponse(error):  # it may have been sent; the nonce prevents a duplicate
                return DiscordResult(Retry(error, code="no_answer"))
            case _:
                assert_never(result)


def invalid_id_result() -> DiscordResult:
    """The id becomes part of a path, so an invalid one is not sent."""
    return DiscordResult(Dead("the recipient is not a Discord id", code="refused"), address_refused=True)


def read_discord_response(response: HttpResponse) -> DiscordResult:
    """Map a response to an outcome."""
    error = parse_discord_error(response)
    code = f" ({error.code})" if error.code else ""
    reason = f"Discord returned HTTP {response.status}{code}: {error.message}".rstrip(": ")
    match response.status:
        case status if 200 <= status < 300:  # noqa: PLR2004 a family of statuses
            return DiscordResult(DONE, id=parse_created_id(response), pause=pause_if_exhausted(response))
        case HTTPStatus.TOO_MANY_REQUESTS:
            # Without Discord's JSON it comes from the proxy in front of the API, which counts all our requests.
            pause = error.retry_after or (DEFAULT_PAUSE if error.message else HUB_FAULT_PAUSE)
            return DiscordResult(Snooze(reason, pause), pause=pause, is_global=error.is_global or not error.message)
        case HTTPStatus.UNAUTHORIZED:
            return DiscordResult(
                Snooze("Discord rejected the bot token", HUB_FAULT_PAUSE), pause=HUB_FAULT_PAUSE, is_global=True
            )
        case _ if error.code == OPENING_DMS_TOO_FAST:
            return DiscordResult(Snooze(reason, DM_LIMIT_PAUSE), pause=DM_LIMIT_PAUSE)
        case HTTPStatus.BAD_REQUEST | HTTPStatus.FORBIDDEN | HTTPStatus.NOT_FOUND if error.code is not None:
            return DiscordResult(
                Dead(reason, code="refused"),
                address_refused=error.code in ADDRESS_REFUSED_CODES,
                channel_missing=error.code == UNKNOWN_CHANNEL,
            )
        case _:
            return DiscordResult(Retry(reason, code=f"http_{response.status}"))


def parse_discord_error(response: HttpResponse) -> DiscordErrorBody:
    body = decode_json_object(response)
    message, code = body.get("message"), body.get("code")
    scope = response.headers.get("x-ratelimit-scope", "")
    return DiscordErrorBody(
        code=code if isinstance(code, int) and code else None,
        message=clean_discord_text(message) if isinstance(message, str) else "",
        retry_after=parse_seconds(body.get("retry_after")) or parse_seconds(response.headers.get("retry-after")),
        is_global=body.get("global") is True or scope == "global" or "x-ratelimit-global" in response.headers,
    )


def parse_created_id(response: HttpResponse) -> str | None:
    created_id = decode_json_object(response).get("id")
    return created_id if isinstance(created_id, str) and SNOWFLAKE.fullmatch(created_id) else None


def pause_if_exhausted(response: HttpResponse) -> timedelta | None:
    """How long until the route accepts another call, if this was the last one allowed for now."""
    if response.headers.get("x-ratelimit-remaining") != "0":
        return None
    return parse_seconds(response.headers.get("x-ratelimit-reset-after"))


def decode_json_object(response: HttpResponse) -> dict[str, Any]:
    try:
        body: object = msgspec.json.decode(response.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return cast("dict[str, Any]", body) if isinstance(body, dict) else {}


def parse_seconds(value: object) -> timedelta | None:
    """Parse seconds from a number or a string, capped at MAX_PAUSE."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        seconds = float(value)
    except (ValueError, OverflowError):
        return None
    if not math.isfinite(seconds) or seconds <= 0:
        return None
    return timedelta(seconds=min(seconds, MAX_PAUSE.total_seconds()))


def clean_discord_text(text: str) -> str:
    redacted = redact_log_text(text[:MAX_REDACTED_LENGTH])
    return "".join(char if char.isprintable() else " " for char in redacted)[:MAX_DISCORD_ERROR_LENGTH]
