"""Discord: open somebody's DM channel, say something in a channel, and what the answer means.

Plain guarded HTTP for two calls. A library that keeps Discord's limits does so by sleeping inside the call; here a
limit is an answer like any other, and whoever asked decides what waits for it.
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
from pabal.outside.http import HttpClient, HttpResponse, NoResponse, NotSent
from pabal.queue.outcome import DONE, Dead, Outcome, Retry, Snooze

DISCORD_API_URL = "https://discord.com/api/v10"
DISCORD_TIMEOUT = timedelta(seconds=10)
MAX_PAUSE = timedelta(hours=1)
DEFAULT_PAUSE = timedelta(seconds=5)  # a limit that does not say how long it lasts
HUB_FAULT_PAUSE = timedelta(minutes=1)  # what is wrong with us, and no recipient's fault, is looked at again after this
DM_LIMIT_PAUSE = timedelta(minutes=10)
MAX_DISCORD_ERROR_LENGTH = 200

SNOWFLAKE = re.compile(r"[0-9]{1,20}")
URGENT_COLOR = 0xE03131

NO_MUTUAL_GUILD, CLOSED_DMS, NO_ACCESS, NO_PERMISSION = 50278, 50007, 50001, 50013
UNKNOWN_CHANNEL, UNKNOWN_USER, INVALID_RECIPIENT = 10003, 10013, 50033
ADDRESS_REFUSED_CODES = frozenset(
    {NO_MUTUAL_GUILD, CLOSED_DMS, NO_ACCESS, NO_PERMISSION, UNKNOWN_CHANNEL, UNKNOWN_USER, INVALID_RECIPIENT}
)
"""Codes that are about the address: it will refuse the next message too."""
OPENING_DMS_TOO_FAST = 40003


@dataclass(frozen=True, slots=True)
class DiscordResult:
    """What became of a call, and what follows from it for the next ones."""

    outcome: Outcome
    id: str | None = None
    """Of the channel that was opened, or the message that was made."""
    pause: timedelta | None = None
    """How long Discord wants nothing more: on this route, or `everywhere`."""
    is_global: bool = False
    address_refused: bool = False
    """The address refuses us for good."""
    channel_missing: bool = False
    """There is no such channel."""


@dataclass(frozen=True, slots=True)
class DiscordErrorBody:
    """What an error says of itself. Without a code it is not Discord's API that speaks."""

    code: int | None = None
    message: str = ""
    retry_after: timedelta | None = None
    is_global: bool = False


class DiscordApi:
    """A bot's two calls."""

    def __init__(
        self, http_client: HttpClient, token: str, api: str = DISCORD_API_URL, time_limit: timedelta = DISCORD_TIMEOUT
    ) -> None:
        self._http_client = http_client
        self._api = api.rstrip("/")
        self._time_limit = time_limit
        self._headers = {
            "authorization": f"Bot {token}",
            "content-type": "application/json",
            "user-agent": f"DiscordBot (pabal, {__version__})",  # the form Discord asks for
        }

    async def open_dm_channel(self, user_id: str) -> DiscordResult:
        """Open the DM channel of a user; opening it again gives the same one."""
        if not SNOWFLAKE.fullmatch(user_id):
            return invalid_id_result()
        answer = await self._post("/users/@me/channels", {"recipient_id": user_id})
        if answer.outcome == DONE and answer.id is None:
            return DiscordResult(Retry("Discord opened a channel and did not say which", code="unreadable"))
        return answer

    async def send_message(
        self, channel_id: str, *, title: str | None, body: str, nonce: str, urgent: bool = False
    ) -> DiscordResult:
        """Say something in a channel. With the same nonce within a few minutes it is said once, however often asked."""
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
        exchange = await self._http_client.post(
            self._api + path, msgspec.json.encode(body), self._headers, time_limit=self._time_limit
        )
        match exchange:
            case HttpResponse():
                return read_discord_response(exchange)
            case NotSent(why):
                return DiscordResult(Retry(f"not sent: {why}", code="not_sent"))
            case NoResponse(why):
                return DiscordResult(
                    Retry(why, code="no_answer")
                )  # perhaps it was said; the nonce keeps it from being said twice
            case _:
                assert_never(exchange)


def invalid_id_result() -> DiscordResult:
    """An id goes into a path, so one that is none goes nowhere."""
    return DiscordResult(Dead("the address is not a Discord id", code="refused"), address_refused=True)


def read_discord_response(response: HttpResponse) -> DiscordResult:
    """Read an answer into an outcome."""
    said, code = parse_discord_error(response), f"http_{response.status}"
    why = f"Discord answered {response.status}{f' ({said.code})' if said.code else ''}: {said.message}".rstrip(": ")
    match response.status:
        case status if 200 <= status < 300:  # noqa: PLR2004 a family of statuses
            return DiscordResult(DONE, id=parse_created_id(response), pause=pause_if_exhausted(response))
        case HTTPStatus.TOO_MANY_REQUESTS:
            # Without Discord's own JSON it is the wall before it, which counts everything we do.
            after = said.retry_after or (DEFAULT_PAUSE if said.message else HUB_FAULT_PAUSE)
            return DiscordResult(Snooze(why, after), pause=after, is_global=said.is_global or not said.message)
        case HTTPStatus.UNAUTHORIZED:
            return DiscordResult(
                Snooze("Discord does not know our token", HUB_FAULT_PAUSE), pause=HUB_FAULT_PAUSE, is_global=True
            )
        case _ if said.code == OPENING_DMS_TOO_FAST:
            return DiscordResult(Snooze(why, DM_LIMIT_PAUSE), pause=DM_LIMIT_PAUSE)
        case HTTPStatus.BAD_REQUEST | HTTPStatus.FORBIDDEN | HTTPStatus.NOT_FOUND if said.code is not None:
            return DiscordResult(
                Dead(why, code="refused"),
                address_refused=said.code in ADDRESS_REFUSED_CODES,
                channel_missing=said.code == UNKNOWN_CHANNEL,
            )
        case _:
            return DiscordResult(Retry(why, code=code))


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
    given = decode_json_object(response).get("id")
    return given if isinstance(given, str) and SNOWFLAKE.fullmatch(given) else None


def pause_if_exhausted(response: HttpResponse) -> timedelta | None:
    """How long until the route takes another, if this was the last for now."""
    if response.headers.get("x-ratelimit-remaining") != "0":
        return None
    return parse_seconds(response.headers.get("x-ratelimit-reset-after"))


def decode_json_object(response: HttpResponse) -> dict[str, Any]:
    try:
        body: object = msgspec.json.decode(response.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return cast("dict[str, Any]", body) if isinstance(body, dict) else {}


def parse_seconds(seconds: object) -> timedelta | None:
    """Seconds with a fraction, as a number or written, within reason."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float | str):
        return None
    try:
        many = float(seconds)
    except (ValueError, OverflowError):
        return None
    if not math.isfinite(many) or many <= 0:
        return None
    return timedelta(seconds=min(many, MAX_PAUSE.total_seconds()))


def clean_discord_text(text: str) -> str:
    return "".join(each if each.isprintable() else " " for each in redact_log_text(text))[:MAX_DISCORD_ERROR_LENGTH]
