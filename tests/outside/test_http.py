"""One POST, and exactly what became of it."""

import asyncio
import socket
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from outside.elsewhere import HOUSE
from pabal.core.errors import Invalid
from pabal.outside import http
from pabal.outside.dns import RESOLVER_THREADS
from pabal.outside.http import HttpClient, HttpResponse, NoResponse, NotSent
from pabal.outside.ssrf import AllowedOrigins
from support.receiver import (
    Mood,
    Receiver,
    answers,
    closes,
    closes_early,
    deaf,
    hangs,
    receiver,
    redirects,
    resets,
    says,
)
from support.wait import until

pytestmark = pytest.mark.anyio

LONG = timedelta(seconds=10)
SHORT = timedelta(seconds=0.3)
MUCH_LESS_THAN_FOREVER = 3.0


async def test_it_arrives_as_it_was_sent_and_the_answer_comes_back(outside: HttpClient, r: Receiver) -> None:
    r.mood = answers(201, b'{"ok":1}', {"X-Thing": "a"})

    answer = await outside.post(r.url, b"\x00body", {"content-type": "text/x"}, time_limit=LONG)

    assert answer == HttpResponse(201, {"content-length": "8", "x-thing": "a"}, b'{"ok":1}')
    [request] = r.requests
    assert (request.method, request.target, request.body) == ("POST", "/hook", b"\x00body")
    assert (
        request.headers.items()
        >= {
            "host": f"127.0.0.1:{r.port}",
            "content-type": "text/x",
            "content-length": "5",
            "accept-encoding": "identity",
        }.items()
    )


async def test_connections_are_kept_and_cookies_are_not(outside: HttpClient, r: Receiver) -> None:
    r.mood = answers(headers={"set-cookie": "a=b; path=/"})

    for _ in range(5):
        await outside.post(r.url, b"", {}, time_limit=LONG)

    assert [request.connection for request in r.requests] == [1] * 5
    assert all("cookie" not in request.headers for request in r.requests)


async def test_a_connection_they_have_closed_meanwhile_costs_nothing(outside: HttpClient, r: Receiver) -> None:
    r.mood = answers(keep=False)
    await outside.post(r.url, b"", {}, time_limit=LONG)
    await until(lambda: r.open == 0)

    assert isinstance(await outside.post(r.url, b"", {}, time_limit=LONG), HttpResponse)
    assert r.connections == 2


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed(outside: HttpClient, r: Receiver, status: int) -> None:
    async with receiver() as other:
        r.mood = redirects(other.url, status)

        answer = await outside.post(r.url, b"", {}, time_limit=LONG)

        assert isinstance(answer, HttpResponse)
        assert answer.status == status
        assert (len(r.requests), other.connections) == (1, 0)


async def test_proxies_of_the_environment_are_ignored(r: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiver() as proxy:
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
            monkeypatch.setenv(name.upper(), f"http://127.0.0.1:{proxy.port}")

        async with HttpClient(HOUSE) as outside:
            assert isinstance(await outside.post(r.url, b"", {}, time_limit=LONG), HttpResponse)

        assert (len(r.requests), proxy.connections) == (1, 0)


async def test_names_that_nobody_answers_for_are_in_no_other_roads_way(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answer, real = Counter[str](), threading.Event(), socket.getaddrinfo

    def looks(host: str, port: int, **how: Any) -> Any:
        asked[host.rpartition(".")[2]] += 1
        if host.endswith(".silent"):
            answer.wait()
            raise socket.gaierror
        return real(host, port, **how)

    monkeypatch.setattr(socket, "getaddrinfo", looks)
    async with HttpClient(AllowedOrigins()) as first, HttpClient(AllowedOrigins.of(["http://localhost"])) as second:
        waiting = [
            asyncio.create_task(first.check_url(f"https://a{number}.silent")) for number in range(2 * RESOLVER_THREADS)
        ]
        try:
            await until(lambda: asked["silent"] == RESOLVER_THREADS)
            async with asyncio.timeout(15):
                found = await second.check_url("http://localhost:1")
        finally:
            answer.set()
            ended = await asyncio.gather(*waiting, return_exceptions=True)

    assert (found.host, asked["localhost"]) == ("localhost", 1)
    assert {type(each) for each in ended} == {Invalid}


@pytest.mark.parametrize(
    ("mood", "why"),
    [
        (hangs, "no response within 0.3 s"),
        (deaf, "no response within 0.3 s"),
        (closes, "the response is empty or not valid HTTP"),
        (says(b"SSH-2.0-OpenSSH_9.6\r\n"), "the response is empty or not valid HTTP"),
        (says(b"HTTP/1.1 200 OK\r\nhalf-a-hea"), "the response is empty or not valid HTTP"),
        (says(b"HTTP/1.1 100 Continue\r\n\r\n"), "the response is empty or not valid HTTP"),
        (says(b"HTTP/1.1 200 OK\r\nx: " + b"x" * 200_000), "the response is empty or not valid HTTP"),
        (resets, "the connection was lost"),
        (closes_early, None),
    ],
    ids=["hangs", "deaf", "closes", "ssh", "half a head", "only 100", "endless head", "resets", "closes early"],
)
async def test_once_sent_and_without_an_answer_it_is_unknown(
    outside: HttpClient, r: Receiver, mood: Mood, why: str | None
) -> None:
    """`closes_early` leaves bytes unread, so its end arrives as a close or as a reset."""
    r.mood = mood
    started = time.monotonic()

    answer = await outside.post(r.url, bytes(8 * 1024 * 1024), {}, time_limit=SHORT if mood in {hangs, deaf} else LONG)

    assert isinstance(answer, NoResponse)
    assert why is None or answer.error == why
    assert time.monotonic() - started < MUCH_LESS_THAN_FOREVER


async def nobody_there(_r: Receiver) -> str:
    with socket.create_server(("127.0.0.1", 0)) as left:
        port = left.getsockname()[1]
    return f"http://127.0.0.1:{port}/"


async def behind_tls(r: Receiver) -> str:
    r.mood = hangs
    return f"https://127.0.0.1:{r.port}/"


async def refused_by_us(r: Receiver) -> str:
    return f"http://127.0.0.2:{r.port}/"


async def without_address(r: Receiver) -> str:
    return f"http://hooks.house:{r.port}/"


@pytest.mark.parametrize(
    ("where", "why"),
    [
        (nobody_there, "connection failed"),
        (behind_tls, "no response within 0.3 s"),
        (refused_by_us, "url: does not begin with https://"),
        (without_address, "the host does not resolve"),
    ],
)
async def test_a_failed_connection_is_not_sent(
    r: Receiver, where: Callable[[Receiver], Awaitable[str]], why: str
) -> None:
    async def empty(_host: str, _port: int) -> list[str]:
        return []

    async with HttpClient(HOUSE, lookup=empty) as outside:
        answer = await outside.post(await where(r), b"", {}, time_limit=SHORT)

    assert answer == NotSent(why)
    assert r.requests == []


async def test_a_lookup_that_hangs_was_not_sent() -> None:
    async def lost(_host: str, _port: int) -> list[str]:
        await asyncio.Event().wait()
        return []

    async with HttpClient(HOUSE, lookup=lost) as outside:
        assert isinstance(await outside.post("http://hooks.house/", b"", {}, time_limit=SHORT), NotSent)


async def test_a_header_with_a_line_break_is_not_sent(outside: HttpClient, r: Receiver) -> None:
    answer = await outside.post(r.url, b"", {"x": "a\r\nx-evil: b"}, time_limit=LONG)

    assert answer == NotSent("the request headers are not valid HTTP")
    assert isinstance(await outside.post(r.url, b"", {}, time_limit=LONG), HttpResponse)
    assert ["x-evil" in request.headers for request in r.requests] == [False]


async def test_whoever_waits_for_a_free_connection_in_vain_has_sent_nothing(
    r: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 1)
    r.mood = hangs
    async with HttpClient(HOUSE) as outside, asyncio.TaskGroup() as tasks:
        holder = tasks.create_task(outside.post(r.url, b"first", {}, time_limit=LONG))
        await r.received(1)

        assert isinstance(await outside.post(r.url, b"second", {}, time_limit=SHORT), NotSent)
        holder.cancel()

    assert [request.body for request in r.requests] == [b"first"]


async def test_a_caller_who_leaves_takes_the_connection_along(outside: HttpClient, r: Receiver) -> None:
    r.mood = hangs
    caller = asyncio.create_task(outside.post(r.url, b"", {}, time_limit=LONG))
    await r.received(1)

    caller.cancel()

    with pytest.raises(asyncio.CancelledError):
        await caller
    await until(lambda: r.open == 0)


async def test_closing_ends_what_was_kept(r: Receiver) -> None:
    async with HttpClient(HOUSE) as outside:
        await outside.post(r.url, b"", {}, time_limit=LONG)
        assert r.open == 1

    await until(lambda: r.open == 0)
