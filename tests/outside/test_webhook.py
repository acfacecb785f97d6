"""Signing webhooks, and the outcome of each response."""

import hmac
from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta, timezone
from email.utils import format_datetime
from hashlib import sha256

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from pabal.events.subscriptions import new_webhook_secret
from pabal.outside.http import HttpClient, HttpResponse
from pabal.outside.ssrf import AllowedOrigins
from pabal.outside.webhook import (
    MAX_EXCERPT_LENGTH,
    MAX_RETRY_AFTER,
    MIN_RETRY_AFTER,
    WebhookOutcome,
    parse_retry_after_header,
    post_webhook,
    read_webhook_response,
    sign_webhook,
)
from pabal.queue.outcome import DONE, Dead, Done, Retry, Unsent, UnsentScope
from support.receiver import Receiver, Responder, close_connection, drip_body, hang, redirect_to, respond_with

pytestmark = pytest.mark.anyio

NOW = datetime(2025, 11, 24, 10, 0, 0, 900_000, tzinfo=UTC)
BODY = '{"이름":"파발"}'.encode()
OLD, NEW = new_webhook_secret(), new_webhook_secret()
SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)


@pytest.fixture
async def outside() -> AsyncGenerator[HttpClient]:
    async with HttpClient(AllowedOrigins.of(["http://127.0.0.1"])) as client:
        yield client


async def send(outside: HttpClient, url: str, within: timedelta = timedelta(seconds=10)) -> WebhookOutcome:
    return await post_webhook(
        outside, url, [OLD, NEW], message_id="msg_1", sent_at=datetime.now(UTC), body=BODY, time_limit=within
    )


async def test_the_standardwebhooks_library_accepts_either_secret(outside: HttpClient, remote: Receiver) -> None:
    assert await send(outside, remote.url) == DONE

    [request] = remote.requests
    assert (request.headers["webhook-id"], request.headers["content-type"]) == ("msg_1", "application/json")
    for secret in (OLD, NEW):
        assert Webhook(secret).verify(request.body, dict(request.headers)) == {"이름": "파발"}
    with pytest.raises(WebhookVerificationError):
        Webhook(new_webhook_secret()).verify(request.body, dict(request.headers))
    with pytest.raises(WebhookVerificationError):
        Webhook(NEW).verify(request.body + b" ", dict(request.headers))


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=9))])
def test_the_signature_is_the_same_in_any_time_zone(zone: timezone) -> None:
    headers = sign_webhook([NEW], "msg_1", NOW.astimezone(zone), BODY)

    seconds = int(NOW.timestamp())
    key = b64decode(NEW.removeprefix("whsec_"))
    expected = b64encode(hmac.digest(key, b"msg_1.%d.%b" % (seconds, BODY), sha256)).decode()
    assert headers == {
        "webhook-id": "msg_1",
        "webhook-timestamp": str(seconds),
        "webhook-signature": f"v1,{expected}",
    }


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
async def test_every_2xx_is_done(outside: HttpClient, remote: Receiver, status: int) -> None:
    remote.responder = respond_with(status)

    assert await send(outside, remote.url) == DONE


async def test_a_2xx_whose_body_never_ends_is_done(outside: HttpClient, remote: Receiver) -> None:
    remote.responder = drip_body()

    assert await send(outside, remote.url, timedelta(seconds=0.3)) == DONE


@pytest.mark.parametrize(
    ("responder", "outcome"),
    [
        (respond_with(410, b"no more"), Dead("HTTP 410: no more", "http_410")),
        (respond_with(429, headers={"retry-after": "7"}), Retry("HTTP 429", timedelta(seconds=7), "http_429")),
        (respond_with(503, headers={"retry-after": "99999"}), Retry("HTTP 503", HOUR, "http_503")),
        (respond_with(503), Retry("HTTP 503", None, "http_503")),
        (respond_with(500, headers={"retry-after": "7"}), Retry("HTTP 500", None, "http_500")),
        (respond_with(404, b"<h1>\r\n\tnot  here"), Retry("HTTP 404: <h1> not here", None, "http_404")),
        (respond_with(400), Retry("HTTP 400", None, "http_400")),
        (respond_with(599), Retry("HTTP 599", None, "http_599")),
        (redirect_to("http://127.0.0.1/"), Retry("HTTP 302: redirects are not followed", None, "http_302")),
        (respond_with(304), Retry("HTTP 304: redirects are not followed", None, "http_304")),
        (close_connection, Retry("the response is empty or not valid HTTP", None, "no_answer")),
        (hang, Retry("no response within 0.5 s", None, "no_answer")),
    ],
    ids=lambda value: str(value.error) if isinstance(value, Dead | Retry) else "",
)
async def test_other_responses_are_retried_except_410(
    outside: HttpClient, remote: Receiver, responder: Responder, outcome: WebhookOutcome
) -> None:
    remote.responder = responder

    assert await send(outside, remote.url, timedelta(seconds=0.5)) == outcome
    assert len(remote.requests) == 1


async def test_a_refused_address_is_a_fault_of_the_target(outside: HttpClient) -> None:
    assert await send(outside, "https://10.0.0.1/") == Unsent(
        "not sent: url: resolves to an address that is not public", "not_sent", UnsentScope.TARGET
    )


@pytest.mark.parametrize(
    ("header", "wait"),
    [
        ("0", SECOND),
        ("1", SECOND),
        ("7", timedelta(seconds=7)),
        (" 7 ", timedelta(seconds=7)),
        ("0000000007", timedelta(seconds=7)),
        ("3600", HOUR),
        ("3601", HOUR),
        ("9" * 10_000, HOUR),
        ("Mon, 24 Nov 2025 10:01:00 GMT", timedelta(seconds=59.1)),
        ("Monday, 24-Nov-25 10:01:00 GMT", timedelta(seconds=59.1)),
        ("Mon Nov 24 10:01:00 2025", timedelta(seconds=59.1)),
        ("Mon, 24 Nov 2025 09:00:00 GMT", SECOND),
        ("Fri, 24 Nov 2045 09:00:00 GMT", HOUR),
        ("", None),
        ("soon", None),
        ("-1", None),
        ("1.5", None),
        ("7 seconds", None),
        ("1e3", None),
        ("\N{ARABIC-INDIC DIGIT SEVEN}", None),
        ("7, 8", None),
        ("Mon, 99 Nov 2025 10:01:00 GMT", None),
        ("Mon, 24 Nov 99999 10:01:00 GMT", None),
    ],
)
def test_retry_after_is_parsed_and_bounded(header: str, wait: timedelta | None) -> None:
    assert parse_retry_after_header(header, NOW) == wait


@given(st.text() | st.text(st.sampled_from("0123456789 :,-+GMTonNv")))
@example("Mon, 24 Nov 2025 10:01:00 +99999999999")
@example("Mon, 01 Jan 0001 00:00:00 +2359")
def test_any_retry_after_text_is_bounded_or_ignored(header: str) -> None:
    wait = parse_retry_after_header(header, NOW)

    assert wait is None or MIN_RETRY_AFTER <= wait <= MAX_RETRY_AFTER


@given(st.integers(min_value=0, max_value=10**30))
def test_retry_after_seconds_are_bounded(seconds: int) -> None:
    wait = parse_retry_after_header(str(seconds), NOW)

    assert wait == timedelta(seconds=min(max(seconds, 1), 3600))


@given(st.datetimes(timezones=st.just(UTC), min_value=datetime(1970, 1, 1), max_value=datetime(2100, 1, 1)))  # noqa: DTZ001 hypothesis requires naive bounds
def test_a_retry_after_date_is_bounded(until: datetime) -> None:
    until = until.replace(microsecond=0)

    assert parse_retry_after_header(format_datetime(until, usegmt=True), NOW) == min(
        max(until - NOW, MIN_RETRY_AFTER), MAX_RETRY_AFTER
    )


@given(st.binary(max_size=3000), st.integers(100, 999))
@example(b"\x1b[2J\x00\x7f", 500)
@example("\u202etxt.exe\u2028".encode(), 500)
def test_an_error_text_is_short_and_printable(body: bytes, status: int) -> None:
    outcome = read_webhook_response(HttpResponse(status, {}, body), NOW)

    if not isinstance(outcome, Done):
        assert outcome.error.startswith(f"HTTP {status}")
        assert len(outcome.error) <= MAX_EXCERPT_LENGTH
        assert outcome.error.isprintable()


@pytest.mark.parametrize("character", ["x", "파"])
def test_a_long_body_is_truncated_in_the_error(character: str) -> None:
    outcome = read_webhook_response(HttpResponse(500, {}, (character * 3000).encode()), NOW)

    assert isinstance(outcome, Retry)
    assert outcome.error == f"HTTP 500: {character * 3000}"[:MAX_EXCERPT_LENGTH]


def test_an_error_text_redacts_tokens() -> None:
    outcome = read_webhook_response(HttpResponse(401, {}, b"bad header: Authorization: Bearer s3cret.s3cret"), NOW)

    assert isinstance(outcome, Retry)
    assert outcome.error == "HTTP 401: bad header: Authorization: Bearer ***"
