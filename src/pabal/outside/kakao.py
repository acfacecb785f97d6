"""Kakao's callback: one POST of a skill response, and Kakao's own word on what became of it."""

import re
from dataclasses import dataclass, field
from datetime import timedelta
from http import HTTPStatus
from typing import Any, assert_never, cast

import msgspec

from pabal.core.errors import Invalid
from pabal.core.log import cover
from pabal.outside import http
from pabal.outside.guard import read
from pabal.outside.http import Answered, Outside

HOSTS = (".kakao.com", ".kakaocdn.net", ".kakaoenterprise.com")
WITHIN = timedelta(seconds=5)
IDLE = timedelta(seconds=4)
"""How long a kept connection may be silent and still be trusted with a callback.

One that the other side closes while we write costs an answer: whether it was read nobody can say, and nothing is sent
twice. Servers give a silent connection five seconds and more; under load ours are never silent that long.
"""
JSON = {"content-type": "application/json; charset=utf-8", "accept": "application/json"}
SAYS = ("taskId", "status", "message", "timestamp")
LONGEST_WORD = 200
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")

Said = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Sent:
    """Kakao took it. `said` is its own answer, as far as it gave one."""

    status: int
    said: Said | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Refused:
    """Kakao did not take it, or it is not Kakao: the answer is shown to nobody."""

    why: str
    status: int | None = None
    said: Said | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Unknown:
    """It was on its way, and what Kakao made of it was not said in a way we can believe."""

    why: str
    status: int | None = None


@dataclass(frozen=True, slots=True)
class NotSent:
    """Not one byte of it left: Kakao's callback is as good as before."""

    why: str


Posted = Sent | Refused | Unknown | NotSent


async def answer(outside: Outside, url: str, body: bytes) -> Posted:
    """Post once, and never again whatever comes of it."""
    try:
        check(outside, url)
    except Invalid as error:
        return Refused(f"the callback {error}".replace("url: ", "", 1))
    exchange = await outside.post(url, body, JSON, within=WITHIN)
    match exchange:
        case Answered():
            return judge(exchange)
        case http.NotSent(why):
            return NotSent(why)
        case http.Unknown(why):
            return Unknown(why)
        case _:
            assert_never(exchange)


def check(outside: Outside, url: str) -> None:
    """Raise Invalid unless it leads to Kakao, or where the operator allows."""
    destination = read(url, outside.origins)
    if not destination.allowed and not destination.host.endswith(HOSTS):
        raise Invalid.one("url", "is not one of Kakao's")


def judge(answer: Answered) -> Posted:
    """Read what Kakao says. A 200 can be a FAIL; an answer cut short may have ended in one.

    A whole 2xx whose body says nothing at all is believed: its status is then the only answer there is.
    """
    said = what_it_says(answer.body) if answer.whole else None
    if not HTTPStatus(200) <= answer.status < HTTPStatus(300):
        more = f": {said['message']}" if said and said.get("message") else ""
        return Refused(f"Kakao answered {answer.status}{more}", answer.status, said)
    if not answer.whole:
        return Unknown("Kakao's answer did not end", answer.status)
    if said is None:
        return Unknown("Kakao's answer cannot be read", answer.status)
    match said.get("status"):
        case "SUCCESS" | None:
            return Sent(answer.status, said or None)
        case "FAIL" | "ERROR" as word:
            more = f": {said['message']}" if said.get("message") else ""
            return Refused(f"Kakao said {word}{more}", answer.status, said)
        case word:
            return Unknown(f"Kakao said {word}", answer.status)


def what_it_says(body: bytes) -> Said | None:
    """The four things Kakao says, each short and safe to keep; empty if it says none, None if it is not JSON."""
    if not body.strip():
        return {}
    try:
        decoded: object = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(decoded, dict):
        return None
    given = cast("Said", decoded)
    return {name: plain(given[name]) for name in SAYS if given.get(name) is not None}


def plain(word: object) -> str | int:
    if isinstance(word, int) and abs(word) < 1 << 53:
        return word
    return CONTROL.sub(" ", cover(str(word)))[:LONGEST_WORD]
