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
from pabal.core.log import cover
from pabal.outside.http import Answered, NotSent, Outside, Unknown
from pabal.queue.outcome import DONE, Dead, Outcome, Retry, Snooze

API = "https://discord.com/api/v10"
WITHIN = timedelta(seconds=10)
LATEST = timedelta(hours=1)
UNSAID = timedelta(seconds=5)  # a limit that does not say how long it lasts
OURS = timedelta(minutes=1)  # what is wrong with us, and no recipient's fault, is looked at again after this
TOO_MANY_DMS = timedelta(minutes=10)
LONGEST_WHY = 200

SNOWFLAKE = re.compile(r"[0-9]{1,20}")
RED = 0xE03131

NO_MUTUAL_GUILD, CLOSED_DMS, NO_ACCESS, NO_PERMISSION = 50278, 50007, 50001, 50013
UNKNOWN_CHANNEL, UNKNOWN_USER, INVALID_RECIPIENT = 10003, 10013, 50033
GONE = frozenset(
    {NO_MUTUAL_GUILD, CLOSED_DMS, NO_ACCESS, NO_PERMISSION, UNKNOWN_CHANNEL, UNKNOWN_USER, INVALID_RECIPIENT}
)
"""Codes that are about the address: it will refuse the next message too."""
OPENING_TOO_FAST = 40003


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a call, and what follows from it for the next ones."""

    outcome: Outcome
    id: str | None = None
    """Of the channel that was opened, or the message that was made."""
    quiet: timedelta | None = None
    """How long Discord wants nothing more: on this route, or `everywhere`."""
    everywhere: bool = False
    gone: bool = False
    """The address refuses us for good."""
    missing: bool = False
    """There is no such channel."""


@dataclass(frozen=True, slots=True)
class Said:
    """What an error says of itself. Without a code it is not Discord's API that speaks."""

    code: int | None = None
    message: str = ""
    retry_after: timedelta | None = None
    everywhere: bool = False


class Discord:
    """A bot's two calls."""

    def __init__(self, outside: Outside, token: str, api: str = API, within: timedelta = WITHIN) -> None:
        self._outside = outside
        self._api = api.rstrip("/")
        self._within = within
        self._headers = {
            "authorization": f"Bot {token}",
            "content-type": "application/json",
            "user-agent": f"DiscordBot (pabal, {__version__})",  # the form Discord asks for
        }

    async def open(self, user: str) -> Answer:
        """Open the DM channel of a user; opening it again gives the same one."""
        if not SNOWFLAKE.fullmatch(user):
            return astray()
        answer = await self._post("/users/@me/channels", {"recipient_id": user})
        if answer.outcome == DONE and answer.id is None:
            return Answer(Retry("Discord opened a channel and did not say which", code="unreadable"))
        return answer

    async def say(self, channel: str, *, title: str | None, body: str, nonce: str, urgent: bool = False) -> Answer:
        """Say something in a channel. With the same nonce within a few minutes it is said once, however often asked."""
        if not SNOWFLAKE.fullmatch(channel):
            return astray()
        embed: dict[str, Any] = {"description": body}
        if title:
            embed["title"] = title
        if urgent:
            embed["color"] = RED
        return await self._post(
            f"/channels/{channel}/messages",
            {"embeds": [embed], "nonce": nonce, "enforce_nonce": True, "allowed_mentions": {"parse": []}},
        )

    async def _post(self, path: str, body: dict[str, Any]) -> Answer:
        exchange = await self._outside.post(
            self._api + path, msgspec.json.encode(body), self._headers, within=self._within
        )
        match exchange:
            case Answered():
                return read(exchange)
            case NotSent(why):
                return Answer(Retry(f"not sent: {why}", code="not_sent"))
            case Unknown(why):
                return Answer(
                    Retry(why, code="no_answer")
                )  # perhaps it was said; the nonce keeps it from being said twice
            case _:
                assert_never(exchange)


def astray() -> Answer:
    """An id goes into a path, so one that is none goes nowhere."""
    return Answer(Dead("the address is not a Discord id", code="refused"), gone=True)


def read(answer: Answered) -> Answer:
    """Read an answer into an outcome."""
    said, code = what_it_says(answer), f"http_{answer.status}"
    why = f"Discord answered {answer.status}{f' ({said.code})' if said.code else ''}: {said.message}".rstrip(": ")
    match answer.status:
        case status if 200 <= status < 300:  # noqa: PLR2004 a family of statuses
            return Answer(DONE, id=made(answer), quiet=spent(answer))
        case HTTPStatus.TOO_MANY_REQUESTS:
            # Without Discord's own JSON it is the wall before it, which counts everything we do.
            after = said.retry_after or (UNSAID if said.message else OURS)
            return Answer(Snooze(why, after), quiet=after, everywhere=said.everywhere or not said.message)
        case HTTPStatus.UNAUTHORIZED:
            return Answer(Snooze("Discord does not know our token", OURS), quiet=OURS, everywhere=True)
        case _ if said.code == OPENING_TOO_FAST:
            return Answer(Snooze(why, TOO_MANY_DMS), quiet=TOO_MANY_DMS)
        case HTTPStatus.BAD_REQUEST | HTTPStatus.FORBIDDEN | HTTPStatus.NOT_FOUND if said.code is not None:
            return Answer(Dead(why, code="refused"), gone=said.code in GONE, missing=said.code == UNKNOWN_CHANNEL)
        case _:
            return Answer(Retry(why, code=code))


def what_it_says(answer: Answered) -> Said:
    body = decoded(answer)
    message, code = body.get("message"), body.get("code")
    scope = answer.headers.get("x-ratelimit-scope", "")
    return Said(
        code=code if isinstance(code, int) and code else None,
        message=plain(message) if isinstance(message, str) else "",
        retry_after=span(body.get("retry_after")) or span(answer.headers.get("retry-after")),
        everywhere=body.get("global") is True or scope == "global" or "x-ratelimit-global" in answer.headers,
    )


def made(answer: Answered) -> str | None:
    given = decoded(answer).get("id")
    return given if isinstance(given, str) and SNOWFLAKE.fullmatch(given) else None


def spent(answer: Answered) -> timedelta | None:
    """How long until the route takes another, if this was the last for now."""
    if answer.headers.get("x-ratelimit-remaining") != "0":
        return None
    return span(answer.headers.get("x-ratelimit-reset-after"))


def decoded(answer: Answered) -> dict[str, Any]:
    try:
        body: object = msgspec.json.decode(answer.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return cast("dict[str, Any]", body) if isinstance(body, dict) else {}


def span(seconds: object) -> timedelta | None:
    """Seconds with a fraction, as a number or written, within reason."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float | str):
        return None
    try:
        many = float(seconds)
    except (ValueError, OverflowError):
        return None
    if not math.isfinite(many) or many <= 0:
        return None
    return timedelta(seconds=min(many, LATEST.total_seconds()))


def plain(word: str) -> str:
    return "".join(each if each.isprintable() else " " for each in cover(word))[:LONGEST_WHY]
