"""One POST to Kakao's callback, and Kakao's own word on it."""

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

from outside.elsewhere import HERE, Authority, Resolver, World
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
from support.fake_kakao import SUCCESS, Kakao, kakao, kakao_says
from support.receiver import (
    Mood,
    answers,
    closes,
    closes_early,
    deaf,
    drips,
    hangs,
    hangs_after_headers,
    huge,
    receiver,
    redirects,
    resets,
    says,
)
from support.wait import until

pytestmark = pytest.mark.anyio

HOUSE = AllowedOrigins.of(["http://127.0.0.1"])
NAME = "bot-api.kakao.com"
PUBLIC = "8.8.8.8"
SHORT = timedelta(seconds=0.3)
MANY = 80  # as many as the receiver lets wait at its door


@pytest.fixture
async def there() -> AsyncGenerator[Kakao]:
    async with kakao() as opened:
        yield opened


@pytest.fixture
async def outside() -> AsyncGenerator[HttpClient]:
    async with HttpClient(HOUSE, idle_timeout=CALLBACK_IDLE_TIMEOUT) as opened:
        yield opened


async def test_kakaos_word_comes_back(outside: HttpClient, there: Kakao) -> None:
    assert await post_kakao_callback(outside, there.url("a"), b"{}") == KakaoAccepted(200, SUCCESS)
    [request] = there.there.requests
    assert (request.method, request.body, request.target) == ("POST", b"{}", "/callback/a?secret=capability")
    assert request.headers["content-type"] == "application/json; charset=utf-8"


@pytest.mark.parametrize(
    ("mood", "became"),
    [
        (kakao_says("FAIL", "bad template"), KakaoRefused("Kakao returned FAIL: bad template", 200)),
        (kakao_says("ERROR"), KakaoRefused("Kakao returned ERROR", 200)),
        (kakao_says("SUCCESS", code=500), KakaoRefused("Kakao returned HTTP 500", 500)),
        (answers(404, b"<html>"), KakaoRefused("Kakao returned HTTP 404", 404)),
        (redirects("http://127.0.0.1:9/"), KakaoRefused("Kakao returned HTTP 302", 302)),
        (answers(200), KakaoAccepted(200)),
        (answers(204), KakaoAccepted(204)),
        (answers(200, b"{}"), KakaoAccepted(200)),
        (answers(200, b'"SUCCESS"'), KakaoUnknown("Kakao's response is not a JSON object", 200)),
        (answers(200, b"\xff\xfe"), KakaoUnknown("Kakao's response is not a JSON object", 200)),
        (answers(200, b"[" * 60000), KakaoUnknown("Kakao's response is not a JSON object", 200)),
        (kakao_says("QUEUED"), KakaoUnknown("Kakao returned QUEUED", 200)),
        (says(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}"), KakaoUnknown("Kakao's response is incomplete", 200)),
        (huge(), KakaoUnknown("Kakao's response is incomplete", 200)),
        (huge(500), KakaoRefused("Kakao returned HTTP 500", 500)),
        (closes, KakaoUnknown("the response is empty or not valid HTTP")),
        (resets, KakaoUnknown("the connection was lost")),
    ],
    ids=lambda each: "mood" if callable(each) else str(each),
)
async def test_every_way_kakao_may_answer(outside: HttpClient, there: Kakao, mood: Mood, became: KakaoResult) -> None:
    there.mood = mood

    found = await post_kakao_callback(outside, there.url("a"), b"{}")

    assert (replace(found, response=None) if isinstance(found, (KakaoAccepted, KakaoRefused)) else found) == became
    assert there.posts == 1


@pytest.mark.parametrize(
    ("mood", "became"),
    [
        (hangs, KakaoUnknown("no response within 0.3 s")),
        (deaf, KakaoUnknown("no response within 0.3 s")),
        (drips(), KakaoUnknown("Kakao's response is incomplete", 200)),
        (hangs_after_headers(), KakaoUnknown("Kakao's response is incomplete", 200)),
        (hangs_after_headers(502), KakaoRefused("Kakao returned HTTP 502", 502)),
    ],
    ids=["hangs", "deaf", "drips", "hangs after 200", "hangs after 502"],
)
async def test_whoever_is_slow_is_not_waited_for(
    outside: HttpClient, there: Kakao, monkeypatch: pytest.MonkeyPatch, mood: Mood, became: KakaoResult
) -> None:
    monkeypatch.setattr(callback, "CALLBACK_TIMEOUT", SHORT)
    there.mood = mood
    started = time.monotonic()

    assert await post_kakao_callback(outside, there.url("a"), b"{}") == became
    assert time.monotonic() - started < 3


def test_all_of_it_takes_at_most_five_seconds() -> None:
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
async def test_what_is_not_kakaos_is_never_dialled(url: str) -> None:
    world, resolver = World({}), Resolver([PUBLIC])
    async with HttpClient(HOUSE, lookup=resolver, network=world) as outside:
        found = await post_kakao_callback(outside, url, b"{}")

    assert isinstance(found, KakaoRefused)
    assert found.error.startswith("the callback ")
    assert (found.status, resolver.asked, world.dialled) == (None, [], [])


@pytest.mark.parametrize("name", [NAME, "a.kakaocdn.net", "a.b.kakaoenterprise.com", "BOT-API.KAKAO.COM"])
async def test_kakaos_own_hosts_are_reached_by_the_address_that_was_checked(authority: Authority, name: str) -> None:
    async with receiver(authority.server(name.lower())) as r:
        world = World({PUBLIC: r.port})
        async with HttpClient(
            AllowedOrigins(), lookup=Resolver([PUBLIC]), network=world, tls=authority.trust()
        ) as outside:
            assert await post_kakao_callback(outside, f"https://{name}/cb", b"{}") == KakaoAccepted(200)

    assert world.dialled == [(PUBLIC, 443)]


@pytest.mark.parametrize("private", [HERE, "10.0.0.1", "169.254.169.254", "::1", "::ffff:10.0.0.1", "fd00::1"])
async def test_a_name_of_kakaos_that_leads_home_is_not_followed(authority: Authority, private: str) -> None:
    world = World({})
    async with HttpClient(
        AllowedOrigins(), lookup=Resolver([private]), network=world, tls=authority.trust()
    ) as outside:
        found = await post_kakao_callback(outside, f"https://{NAME}/cb", b"{}")

    assert found == KakaoNotSent("url: resolves to an address that is not public")
    assert world.dialled == []


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


async def test_connections_are_kept_but_not_for_long(there: Kakao) -> None:
    async with HttpClient(HOUSE, idle_timeout=CALLBACK_IDLE_TIMEOUT) as outside:
        for _ in range(5):
            await post_kakao_callback(outside, there.url("a"), b"{}")
    assert there.there.connections == 1

    async with HttpClient(HOUSE, idle_timeout=timedelta()) as impatient:
        for _ in range(3):
            assert isinstance(await post_kakao_callback(impatient, there.url("a"), b"{}"), KakaoAccepted)
    assert there.there.connections == 4


async def test_a_kept_connection_that_was_closed_costs_no_answer(outside: HttpClient, there: Kakao) -> None:
    there.mood = answers(200, b"{}", keep=False)

    for n in range(1, 6):
        assert await post_kakao_callback(outside, there.url("a"), b"{}") == KakaoAccepted(200)
        await until(lambda: there.there.open == 0)
        assert there.there.connections == n


async def test_many_at_once_are_posted_once_each(outside: HttpClient, there: Kakao) -> None:
    posted = await asyncio.gather(*(post_kakao_callback(outside, there.url(str(n)), b"{}") for n in range(MANY)))

    assert [*map(type, posted)] == [KakaoAccepted] * MANY
    assert all(len(there.answered(str(n))) == 1 for n in range(MANY))


async def test_a_request_the_other_side_never_read_is_still_unknown(outside: HttpClient, there: Kakao) -> None:
    there.mood = closes_early

    assert isinstance(await post_kakao_callback(outside, there.url("a"), bytes(1024 * 1024)), KakaoUnknown)


words = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@given(
    status=st.sampled_from([200, 201, 301, 400, 500]),
    said=words | st.fixed_dictionaries({}, optional=dict.fromkeys(SUCCESS, words)),
    whole=st.booleans(),
)
def test_only_a_whole_answer_that_does_not_object_is_success(status: int, said: Any, whole: bool) -> None:
    became = read_kakao_response(HttpResponse(status, {}, json.dumps(said).encode(), whole))

    word = said.get("status") if isinstance(said, dict) else "unreadable"
    assert isinstance(became, KakaoAccepted) == (status < 300 and whole and (word is None or word == "SUCCESS"))
    assert isinstance(became, KakaoRefused) == (status >= 300 or (whole and word in ("FAIL", "ERROR")))
    kept = became.response if isinstance(became, (KakaoAccepted, KakaoRefused)) else None
    assert "\\u0000" not in json.dumps(kept)
    assert len(json.dumps(kept)) < 6000
