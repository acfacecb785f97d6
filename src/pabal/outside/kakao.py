"""Kakao callback: one POST of a skill response, and what Kakao reports about it."""

import re
from dataclasses import dataclass, field
from datetime import timedelta
from http import HTTPStatus
from typing import Any, Literal, assert_never, cast

import msgspec

from pabal.core.errors import Invalid
from pabal.core.log import redact_log_text
from pabal.outside.http import ALLOW_HINT, HttpClient, HttpResponse, NoResponse, NotSent
from pabal.outside.ssrf import DestinationRefused, parse_destination

KAKAO_HOSTS = (".kakao.com", ".kakaocdn.net", ".kakaoenterprise.com")
CALLBACK_TIMEOUT = timedelta(seconds=5)
CALLBACK_IDLE_TIMEOUT = timedelta(seconds=4)
"""Reuse a connection only if it was idle for less than this.

If the server closes the connection while we write, the callback is lost: it may have been read, so it is not sent
again. Servers keep an idle connection for at least five seconds; under load, ours are never idle for that long.
"""
JSON_HEADERS = {"content-type": "application/json; charset=utf-8", "accept": "application/json"}
RESPONSE_FIELDS = ("taskId", "status", "message", "timestamp")
MAX_VALUE_LENGTH = 200
CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f]")

KakaoResponse = dict[str, Any]


@dataclass(frozen=True, slots=True)
class KakaoAccepted:
    """Kakao accepted the callback. `response` is its JSON, if any."""

    status: int
    response: KakaoResponse | None = field(default=None, repr=False)
    outcome: Literal["sent"] = field(default="sent", init=False, repr=False)
    error: None = field(default=None, init=False, repr=False)


@dataclass(frozen=True, slots=True)
class KakaoRefused:
    """Kakao rejected the callback, or the URL is not Kakao's: the user does not see the reply."""

    error: str
    status: int | None = None
    response: KakaoResponse | None = field(default=None, repr=False)
    outcome: Literal["refused"] = field(default="refused", init=False, repr=False)


@dataclass(frozen=True, slots=True)
class KakaoUnknown:
    """The callback was sent, but there is no valid response: the user may see the reply."""

    error: str
    status: int | None = None
    outcome: Literal["unknown"] = field(default="unknown", init=False, repr=False)
    response: None = field(default=None, init=False, repr=False)


@dataclass(frozen=True, slots=True)
class KakaoNotSent:
    """No byte was sent: the callback can still be used."""

    error: str
    outcome: Literal["unsent"] = field(default="unsent", init=False, repr=False)
    status: None = field(default=None, init=False, repr=False)
    response: None = field(default=None, init=False, repr=False)


KakaoResult = KakaoAccepted | KakaoRefused | KakaoUnknown | KakaoNotSent


async def post_kakao_callback(http_client: HttpClient, url: str, body: bytes) -> KakaoResult:
    """Post once. Never retries: Kakao accepts a callback once."""
    try:
        check_callback_url(http_client, url)
    except DestinationRefused as error:
        return KakaoRefused(f"the callback URL {error.errors[0].why}. {ALLOW_HINT}")
    except Invalid as error:
        return KakaoRefused(f"the callback URL {error}".replace("url: ", "", 1))
    result = await http_client.post(url, body, JSON_HEADERS, time_limit=CALLBACK_TIMEOUT)
    match result:
        case HttpResponse():
            return read_kakao_response(result)
        case NotSent(error):
            return KakaoNotSent(error)
        case NoResponse(error):
            return KakaoUnknown(error)
        case _:
            assert_never(result)


def check_callback_url(http_client: HttpClient, url: str) -> None:
    """Raise Invalid unless the host is Kakao's or allowed by the operator."""
    destination = parse_destination(url, http_client.allowed_origins)
    if not destination.allowed and not destination.host.endswith(KAKAO_HOSTS):
        raise DestinationRefused.of_field("url", "is not a Kakao URL")


def read_kakao_response(response: HttpResponse) -> KakaoResult:
    """Map a response to a result. A 200 can contain FAIL, and so can the missing end of an incomplete response.

    A complete 2xx response without a status in its body counts as accepted.
    """
    body = parse_kakao_body(response.body) if response.is_complete else None
    if not HTTPStatus(200) <= response.status < HTTPStatus(300):
        message = f": {body['message']}" if body and body.get("message") else ""
        return KakaoRefused(f"Kakao returned HTTP {response.status}{message}", response.status, body)
    if not response.is_complete:
        return KakaoUnknown("Kakao's response is incomplete", response.status)
    if body is None:
        return KakaoUnknown("Kakao's response is not a JSON object", response.status)
    match body.get("status"):
        case "SUCCESS" | None:
            return KakaoAccepted(response.status, body or None)
        case "FAIL" | "ERROR" as status:
            message = f": {body['message']}" if body.get("message") else ""
            return KakaoRefused(f"Kakao returned {status}{message}", response.status, body)
        case status:
            return KakaoUnknown(f"Kakao returned {status}", response.status)


def parse_kakao_body(body: bytes) -> KakaoResponse | None:
    """Return the known fields, cleaned; empty without any of them, None if the body is not a JSON object."""
    if not body.strip():
        return {}
    try:
        decoded: object = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(decoded, dict):
        return None
    fields = cast("KakaoResponse", decoded)
    return {name: clean_kakao_value(fields[name]) for name in RESPONSE_FIELDS if fields.get(name) is not None}


def clean_kakao_value(value: object) -> str | int:
    if isinstance(value, int) and abs(value) < 1 << 53:
        return value
    return CONTROL_CHARACTERS.sub(" ", redact_log_text(str(value)))[:MAX_VALUE_LENGTH]
