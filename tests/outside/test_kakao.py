"""Posting to Kakao's callback, and the result of each response."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outside.fake_network import LOOPBACK, Authority, FakeNetwork, Resolver
from pabal.outside import kakao as callback
from pabal.outside.http import HttpClient, HttpResponse
from pabal.outside.kakao import (
    CALLBACK_IDLE_TIMEOUT,
    KakaoAccepted,
    KakaoNotSent,
    KakaoRefused,
    KakaoResult,
    KakaoUnknown,
    post_kakao_callback,
    read_kakao_response,
)
from pabal.outside.ssrf import AllowedOrigins
from support.fake_kakao import SUCCESS, FakeKakao, kakao_response, run_fake_kakao
from support.receiver import (
    Responder,
    close_connection,
    close_early,
    drip_body,
    endless_body,
    hang,
    hang_after_headers,
    redirect_to,
    reset_connection,
    respond_with,
    run_receiver,
    send_raw,
    stop_reading,
)
from support.wait import wait_until

pytestmark = pytest.mark.anyio

ALLOWED_ORIGINS = AllowedOrigins.of(["http://127.0.0.1"])
NAME = "bot-api.kakao.com"
PUBLIC = "8.8.8.8"
SHORT = timedelta(seconds=0.3)
MANY = 80  # the listen backlog of the receiver


@pytest.fixture
async def fake() -> AsyncGenerator[FakeKakao]:
    async with run_fake_kakao() as client:
        yield client


@pytest.fixture
async def outside() -> AsyncGenerator[HttpClient]:
    async with HttpClient(ALLOWED_ORIGINS, idle_timeout=CALLBACK_IDLE_TIMEOUT) as client:
        yield client


async def test_a_success_returns_the_response_of_kakao(outside: HttpClient, fake: FakeKakao) -> None:
    assert await post_kakao_callback(outside, fake.url("a"), b"{}") == KakaoAccepted(200, SUCCESS)
    [request] = fake.receiver.requests
    assert (request.method, request.body, request.target) == ("POST", b"{}", "/callback/a?secret=capability")
    assert request.headers["content-type"] == "application/json; charset=utf-8"


@pytest.mark.parametrize(
    ("responder", "expected"),
    [
        (kakao_response("FAIL", "bad template"), KakaoRefused("Kakao returned FAIL: bad template", 200)),
        (kakao_response("ERROR"), KakaoRefused("Kakao returned ERROR", 200)),
        (kakao_response("SUCCESS", code=500), KakaoRefused("Kakao returned HTTP 500", 500)),
        (respond_with(404, b"<html>"), KakaoRefused("Kakao returned HTTP 404", 404)),
        (redirect_to("http://127.0.0.1:9/"), KakaoRefused("Kakao returned HTTP 302", 302)),
        (respond_with(200), KakaoAccepted(200)),
        (respond_with(204), KakaoAccepted(204)),
        (respond_with(200, b"{}"), KakaoAccepted(200)),
        (respond_with(200, b'"SUCCESS"'), KakaoUnknown("Kakao's response is not a JSON object", 200)),
        (respond_with(200, b"\xff\xfe"), KakaoUnknown("Kakao's response is not a JSON object", 200)),
        (respond_with(200, b"[" * 60000), KakaoUnknown("Kakao's response is not a JSON object", 200)),
        (kakao_response("QUEUED"), KakaoUnknown("Kakao returned QUEUED", 200)),
        (
            send_raw(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}"),
            KakaoUnknown("Kakao's response is incomplete", 200),
        ),
        (endless_body(), KakaoUnknown("Kakao's response is incomplete", 200)),
        (endless_body(500), KakaoRefused("Kakao returned HTTP 500", 500)),
        (close_connection, KakaoUnknown("the response is empty or not valid HTTP")),
        (reset_connection, KakaoUnknown("the connection was lost")),
    ],
    ids=lambda value: "responder" if callable(value) else str(value),
)
async def test_each_response_has_its_result(
    outside: HttpClient, fake: FakeKakao, responder: Responder, expected: KakaoResult
) -> None:
    fake.responder = responder

    result = await post_kakao_callback(outside, fake.url("a"), b"{}")

    assert (replace(result, response=None) if isinstance(result, (KakaoAccepted, KakaoRefused)) else result) == expected
    assert fake.posts == 1


@pytest.mark.parametrize(
    ("responder", "expected"),
    [
        (hang, KakaoUnknown("no response within 0.3 s")),
        (stop_reading, KakaoUnknown("no response within 0.3 s")),
        (drip_body(), KakaoUnknown("Kakao's response is incomplete", 200)),
        (hang_after_headers(), KakaoUnknown("Kakao's response is incomplete", 200)),
        (hang_after_headers(502), KakaoRefused("Kakao returned HTTP 502", 502)),
    ],
    ids=["hangs", "deaf", "drips", "hangs after 200", "hangs after 502"],
)
async def test_a_slow_response_times_out(
    outside: HttpClient, fake: FakeKakao, monkeypatch: pytest.MonkeyPatch, responder: Responder, expected: KakaoResult
) -> None:
    monkeypatch.setattr(callback, "CALLBACK_TIMEOUT", SHORT)
    fake.responder = responder
    started = time.monotonic()

    assert await post_kakao_callback(outside, fake.url("a"), b"{}") == expected
    assert time.monotonic() - started < 3


def test_the_callback_timeout_is_five_seconds() -> None:
    assert timedelta(seconds=5) == callback.CALLBACK_TIMEOUT


NOT_KAKAO = [
    "http://bot-api.kakao.com/cb",
    "https://kakao.com/cb",
    "https://evilkakao.com/cb",
    "https://bot-api.kakao.com.evil.org/cb",
    "https://bot-api.kakao.com@evil.org/cb",
    "https://evil.org/bot-api.kakao.com",
    "https://evil.org#.kakao.com",
    "https://evil.org?.kakao.com",
    "https://evil.org\\.kakao.com/",
    "https://bot-api.kakao.com./cb",
    "https://8.8.8.8/cb",
    "http://127.0.0.2/cb",
    "https://127.0.0.1/cb",
    "https://localhost/cb",
    "https://169.254.169.254/latest/meta-data/",
    "https://[::1]/cb",
    "https://[::ffff:127.0.0.1]/cb",
    "https://[fe80::1]/cb",
    "https://2130706433/cb",
    "https://0177.0.0.1/cb",
    "https://0x7f.1/cb",
    "https://127.1/cb",
    "file:///etc/passwd",
    "gopher://bot-api.kakao.com/",
    "",
]


@pytest.mark.parametrize("url", NOT_KAKAO)
async def test_a_url_that_is_not_of_kakao_is_refused_without_a_connection(url: str) -> None:
    world, resolver = FakeNetwork({}), Resolver([PUBLIC])
    async with HttpClient(ALLOWED_ORIGINS, lookup=resolver, network=world) as outside:
        result = await post_kakao_callback(outside, url, b"{}")

    assert isinstance(result, KakaoRefused)
    assert result.error.startswith("the callback ")
    assert (result.status, resolver.requested_hosts, world.connections) == (None, [], [])


@pytest.mark.parametrize("url", ["http://127.0.0.2/cb", "https://evil.org/cb"])
async def test_the_error_of_a_refused_destination_names_the_setting_that_allows_it(url: str) -> None:
    async with HttpClient(ALLOWED_ORIGINS) as outside:
        result = await post_kakao_callback(outside, url, b"{}")

    assert isinstance(result, KakaoRefused)
    assert "PABAL_CALLBACK_ALLOW" in result.error


@pytest.mark.parametrize("name", [NAME, "a.kakaocdn.net", "a.b.kakaoenterprise.com", "BOT-API.KAKAO.COM"])
async def test_hosts_of_kakao_are_reached_by_the_checked_address(authority: Authority, name: str) -> None:
    async with run_receiver(authority.server(name.lower())) as remote:
        world = FakeNetwork({PUBLIC: remote.port})
        async with HttpClient(
            AllowedOrigins(), lookup=Resolver([PUBLIC]), network=world, tls=authority.trust()
        ) as outside:
            assert await post_kakao_callback(outside, f"https://{name}/cb", b"{}") == KakaoAccepted(200)

    assert world.connections == [(PUBLIC, 443)]


@pytest.mark.parametrize("private", [LOOPBACK, "10.0.0.1", "169.254.169.254", "::1", "::ffff:10.0.0.1", "fd00::1"])
async def test_a_kakao_host_with_a_private_address_is_not_connected(authority: Authority, private: str) -> None:
    world = FakeNetwork({})
    async with HttpClient(
        AllowedOrigins(), lookup=Resolver([private]), network=world, tls=authority.trust()
    ) as outside:
        result = await post_kakao_callback(outside, f"https://{NAME}/cb", b"{}")

    assert result == KakaoNotSent("url: resolves to an address that is not public")
    assert world.connections == []


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


async def test_connections_are_kept_until_the_idle_timeout(fake: FakeKakao) -> None:
    async with HttpClient(ALLOWED_ORIGINS, idle_timeout=CALLBACK_IDLE_TIMEOUT) as outside:
        for _ in range(5):
            await post_kakao_callback(outside, fake.url("a"), b"{}")
    assert fake.receiver.connections == 1

    async with HttpClient(ALLOWED_ORIGINS, idle_timeout=timedelta()) as client_without_keepalive:
        for _ in range(3):
            assert isinstance(await post_kakao_callback(client_without_keepalive, fake.url("a"), b"{}"), KakaoAccepted)
    assert fake.receiver.connections == 4


async def test_a_kept_connection_closed_by_the_server_is_replaced(outside: HttpClient, fake: FakeKakao) -> None:
    fake.responder = respond_with(200, b"{}", keep=False)

    for n in range(1, 6):
        assert await post_kakao_callback(outside, fake.url("a"), b"{}") == KakaoAccepted(200)
        await wait_until(lambda: fake.receiver.open == 0)
        assert fake.receiver.connections == n


async def test_concurrent_callbacks_are_posted_once_each(outside: HttpClient, fake: FakeKakao) -> None:
    results = await asyncio.gather(*(post_kakao_callback(outside, fake.url(str(n)), b"{}") for n in range(MANY)))

    assert [*map(type, results)] == [KakaoAccepted] * MANY
    assert all(len(fake.responses(str(n))) == 1 for n in range(MANY))


async def test_a_request_that_was_not_read_is_unknown(outside: HttpClient, fake: FakeKakao) -> None:
    fake.responder = close_early

    assert isinstance(await post_kakao_callback(outside, fake.url("a"), bytes(1024 * 1024)), KakaoUnknown)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@given(
    status=st.sampled_from([200, 201, 301, 400, 500]),
    body=json_values | st.fixed_dictionaries({}, optional=dict.fromkeys(SUCCESS, json_values)),
    complete=st.booleans(),
)
def test_only_a_complete_response_without_failure_is_success(status: int, body: Any, complete: bool) -> None:
    expected = read_kakao_response(HttpResponse(status, {}, json.dumps(body).encode(), complete))

    reported_status = body.get("status") if isinstance(body, dict) else "unreadable"
    assert isinstance(expected, KakaoAccepted) == (
        status < 300 and complete and (reported_status is None or reported_status == "SUCCESS")
    )
    assert isinstance(expected, KakaoRefused) == (status >= 300 or (complete and reported_status in ("FAIL", "ERROR")))
    stored = expected.response if isinstance(expected, (KakaoAccepted, KakaoRefused)) else None
    assert "\\u0000" not in json.dumps(stored)
    assert len(json.dumps(stored)) < 6000
