"""Kakao's callback: one POST of a skill response, and Kakao's own word on what became of it."""

import re
from dataclasses import dataclass, field
from datetime import timedelta
from http import HTTPStatus
from typing import Any, Literal, assert_never, cast

import msgspec

from pabal.core.errors import Invalid
from pabal.core.log import redact_log_text
from pabal.outside.http import HttpClient, HttpResponse, NoResponse, NotSent
from pabal.outside.ssrf import parse_destination

KAKAO_HOSTS = (".kakao.com", ".kakaocdn.net", ".kakaoenterprise.com")
CALLBACK_TIMEOUT = timedelta(seconds=5)
CALLBACK_IDLE_TIMEOUT = timedelta(seconds=4)
"""How long a kept connection may be silent and still be trusted with a callback.

One that the other side closes while we write costs an answer: whether it was read nobody can say, and nothing is sent
twice. Servers give a silent connection five seconds and more; under load ours are never silent that long.
"""
JSON_HEADERS = {"content-type": "application/json; charset=utf-8", "accept": "application/json"}
RESPONSE_FIELDS = ("taskId", "status", "message", "timestamp")
MAX_VALUE_LENGTH = 200
CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f]")

KakaoResponse = dict[str, Any]


@dataclass(frozen=True, slots=True)
class KakaoAccepted:
    """Kakao took it. `said` is its own answer, as far as it gave one."""

    status: int
    response: KakaoResponse | None = field(default=None, repr=False)
    outcome: Literal["sent"] = field(default="sent", init=False, repr=False)
    error: None = field(default=None, init=False, repr=False)


@dataclass(frozen=True, slots=True)
class KakaoRefused:
    """Kakao did not take it, or it is not Kakao: the answer is shown to nobody."""

    error: str
    status: int | None = None
    response: KakaoResponse | None = field(default=None, repr=False)
    outcome: Literal["refused"] = field(default="refused", init=False, repr=False)


@dataclass(frozen=True, slots=True)
class KakaoUnknown:
    """It was on its way, and what Kakao made of it was not said in a way we can believe."""

    error: str
    status: int | None = None
    outcome: Literal["unknown"] = field(default="unknown", init=False, repr=False)
    response: None = field(default=None, init=False, repr=False)


@dataclass(frozen=True, slots=True)
class KakaoNotSent:
    """Not one byte of it left: Kakao's callback is as good as before."""

    error: str
    outcome: Literal["unsent"] = field(default="unsent", init=False, repr=False)
    status: None = field(default=None, init=False, repr=False)
    response: None = field(default=None, init=False, repr=False)


KakaoResult = KakaoAccepted | KakaoRefused | KakaoUnknown | KakaoNotSent


async def post_kakao_callback(http_client: HttpClient, url: str, body: bytes) -> KakaoResult:
    """Post once, and never again whatever comes of it."""
    try:
        check_callback_url(http_client, url)
    except Invalid as error:
        return KakaoRefused(f"the callback {error}".replace("url: ", "", 1))
    exchange = await http_client.post(url, body, JSON_HEADERS, time_limit=CALLBACK_TIMEOUT)
    match exchange:
        case HttpResponse():
            return read_kakao_response(exchange)
        case NotSent(why):
            return KakaoNotSent(why)
        case NoResponse(why):
            return KakaoUnknown(why)
        case _:
            assert_never(exchange)


def check_callback_url(http_client: HttpClient, url: str) -> None:
    """Raise Invalid unless it leads to Kakao, or where the operator allows."""
    destination = parse_destination(url, http_client.allowed_origins)
    if not destination.allowed and not destination.host.endswith(KAKAO_HOSTS):
        raise Invalid.of_field("url", "is not one of Kakao's")


def read_kakao_response(response: HttpResponse) -> KakaoResult:
    """Read what Kakao says. A 200 can be a FAIL; an answer cut short may have ended in one.

    A whole 2xx whose body says nothing at all is believed: its status is then the only answer there is.
    """
    said = parse_kakao_body(response.body) if response.is_complete else None
    if not HTTPStatus(200) <= response.status < HTTPStatus(300):
        more = f": {said['message']}" if said and said.get("message") else ""
        return KakaoRefused(f"Kakao answered {response.status}{more}", response.status, said)
    if not response.is_complete:
        return KakaoUnknown("Kakao's answer did not end", response.status)
    if said is None:
        return KakaoUnknown("Kakao's answer cannot be read", response.status)
    match said.get("status"):
        case "SUCCESS" | None:
            return KakaoAccepted(response.status, said or None)
        case "FAIL" | "ERROR" as word:
            more = f": {said['message']}" if said.get("message") else ""
            return KakaoRefused(f"Kakao said {word}{more}", response.status, said)
        case word:
            return KakaoUnknown(f"Kakao said {word}", response.status)


def parse_kakao_body(body: bytes) -> KakaoResponse | None:
    """The four things Kakao says, each short and safe to keep; empty if it says none, None if it is not JSON."""
    if not body.strip():
        return {}
    try:
        decoded: object = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(decoded, dict):
        return None
    given = cast("KakaoResponse", decoded)
    return {name: clean_kakao_value(given[name]) for name in RESPONSE_FIELDS if given.get(name) is not None}


def clean_kakao_value(value: object) -> str | int:
    if isinstance(value, int) and abs(value) < 1 << 53:
        return value
    return CONTROL_CHARACTERS.sub(" ", redact_log_text(str(value)))[:MAX_VALUE_LENGTH]
