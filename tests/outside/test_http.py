"""One POST, and exactly what became of it."""

import asyncio
import gzip
import socket
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from pabal.core.errors import Invalid
from pabal.outside import http
from pabal.outside.guard import Origins
from pabal.outside.http import MOST_BODY, Answered, NotSent, Outside, Unknown
from pabal.outside.lines import READ
from pabal.outside.lookup import THREADS
from patience import until
from receiver import (
    Mood,
    Receiver,
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
    trails,
)

pytestmark = pytest.mark.anyio

HOUSE = Origins.of(["http://127.0.0.1", "https://127.0.0.1", "http://hooks.house"])
LONG = timedelta(seconds=10)
SHORT = timedelta(seconds=0.3)
MUCH_LESS_THAN_FOREVER = 3.0


@pytest.fixture
async def outside() -> AsyncGenerator[Outside]:
    async with Outside(HOUSE) as opened:
        yield opened


@pytest.fixture
async def r() -> AsyncGenerator[Receiver]:
    async with receiver() as there:
        yield there


async def test_it_arrives_as_it_was_sent_and_the_answer_comes_back(outside: Outside, r: Receiver) -> None:
    r.mood = answers(201, b'{"ok":1}', {"X-Thing": "a"})

    answer = await outside.post(r.url, b"\x00body", {"content-type": "text/x"}, within=LONG)

    assert answer == Answered(201, {"content-length": "8", "x-thing": "a"}, b'{"ok":1}')
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


async def test_connections_are_kept_and_cookies_are_not(outside: Outside, r: Receiver) -> None:
    r.mood = answers(headers={"set-cookie": "a=b; path=/"})

    for _ in range(5):
        await outside.post(r.url, b"", {}, within=LONG)

    assert [request.connection for request in r.requests] == [1] * 5
    assert all("cookie" not in request.headers for request in r.requests)


async def test_a_connection_they_have_closed_meanwhile_costs_nothing(outside: Outside, r: Receiver) -> None:
    r.mood = answers(keep=False)
    await outside.post(r.url, b"", {}, within=LONG)
    await until(lambda: r.open == 0)

    assert isinstance(await outside.post(r.url, b"", {}, within=LONG), Answered)
    assert r.connections == 2


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed(outside: Outside, r: Receiver, status: int) -> None:
    async with receiver() as other:
        r.mood = redirects(other.url, status)

        answer = await outside.post(r.url, b"", {}, within=LONG)

        assert isinstance(answer, Answered)
        assert answer.status == status
        assert (len(r.requests), other.connections) == (1, 0)


async def test_proxies_of_the_environment_are_ignored(r: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiver() as proxy:
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
            monkeypatch.setenv(name.upper(), f"http://127.0.0.1:{proxy.port}")

        async with Outside(HOUSE) as outside:
            assert isinstance(await outside.post(r.url, b"", {}, within=LONG), Answered)

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
    async with Outside(Origins()) as first, Outside(Origins.of(["http://localhost"])) as second:
        waiting = [asyncio.create_task(first.check(f"https://a{number}.silent")) for number in range(2 * THREADS)]
        try:
            await until(lambda: asked["silent"] == THREADS)
            async with asyncio.timeout(15):
                found = await second.check("http://localhost:1")
        finally:
            answer.set()
            ended = await asyncio.gather(*waiting, return_exceptions=True)

    assert (found.host, asked["localhost"]) == ("localhost", 1)
    assert {type(each) for each in ended} == {Invalid}


async def test_a_body_without_end_is_cut_and_its_connection_dropped(outside: Outside, r: Receiver) -> None:
    r.mood = huge()

    tracemalloc.start()
    try:
        answer = await outside.post(r.url, b"", {}, within=LONG)
        _now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert isinstance(answer, Answered)
    assert (answer.status, len(answer.body), answer.whole) == (200, MOST_BODY, False)
    assert peak < 4 * 1024 * 1024
    await until(lambda: r.open == 0)


TRAILERS = {"many": trails(b"x-more: %b\r\n" % (b"a" * 4000)), "one": trails(b"a" * 4000, b"x-more: ")}


@pytest.mark.parametrize("mood", TRAILERS.values(), ids=TRAILERS)
async def test_trailers_without_end_are_cut_and_are_no_headers(outside: Outside, r: Receiver, mood: Mood) -> None:
    r.mood = mood

    tracemalloc.start()
    try:
        answer = await outside.post(r.url, b"", {}, within=LONG / 5)
        _now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert answer == Answered(200, {"transfer-encoding": "chunked"}, b"ok", whole=False)
    assert peak < 4 * 1024 * 1024
    await until(lambda: r.open == 0)


async def test_a_body_of_exactly_the_cap_is_whole(outside: Outside, r: Receiver) -> None:
    r.mood = answers(body=b"x" * MOST_BODY)

    answer = await outside.post(r.url, b"", {}, within=LONG)

    assert isinstance(answer, Answered)
    assert (len(answer.body), answer.whole) == (MOST_BODY, True)


async def test_a_body_of_crumbs_lets_others_have_their_turn(outside: Outside, r: Receiver) -> None:
    crumbs = 5000
    r.mood = says(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * crumbs + b"0\r\n\r\n")
    turns = 0

    async def another() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    other = asyncio.create_task(another())
    answer = await outside.post(r.url, b"", {}, within=LONG)
    other.cancel()

    assert isinstance(answer, Answered)
    assert answer.body == b"x" * crumbs
    assert turns >= crumbs * len(b"1\r\nx\r\n") / READ


async def test_a_packed_body_stays_packed(outside: Outside, r: Receiver) -> None:
    bomb = gzip.compress(bytes(10 * 1024 * 1024))
    r.mood = answers(body=bomb, headers={"content-encoding": "gzip"})

    answer = await outside.post(r.url, b"", {}, within=LONG)

    assert isinstance(answer, Answered)
    assert answer.body == bomb


@pytest.mark.parametrize("mood", [drips(), hangs_after_headers()], ids=["drips", "hangs after headers"])
async def test_a_status_counts_though_its_body_never_ends(outside: Outside, r: Receiver, mood: Mood) -> None:
    r.mood = mood
    started = time.monotonic()

    answer = await outside.post(r.url, b"", {}, within=SHORT)

    assert isinstance(answer, Answered)
    assert (answer.status, answer.whole) == (200, False)
    assert time.monotonic() - started < MUCH_LESS_THAN_FOREVER
    await until(lambda: r.open == 0)


async def test_a_body_that_breaks_off_is_not_whole(outside: Outside, r: Receiver) -> None:
    r.mood = says(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab")

    assert await outside.post(r.url, b"", {}, within=LONG) == Answered(200, {"content-length": "5"}, b"ab", whole=False)


@pytest.mark.parametrize(
    ("mood", "why"),
    [
        (hangs, "nothing came back within 0.3 s"),
        (deaf, "nothing came back within 0.3 s"),
        (closes, "the answer was not HTTP, or none at all"),
        (says(b"SSH-2.0-OpenSSH_9.6\r\n"), "the answer was not HTTP, or none at all"),
        (says(b"HTTP/1.1 200 OK\r\nhalf-a-hea"), "the answer was not HTTP, or none at all"),
        (says(b"HTTP/1.1 100 Continue\r\n\r\n"), "the answer was not HTTP, or none at all"),
        (says(b"HTTP/1.1 200 OK\r\nx: " + b"x" * 200_000), "the answer was not HTTP, or none at all"),
        (resets, "the connection broke"),
        (closes_early, None),
    ],
    ids=["hangs", "deaf", "closes", "ssh", "half a head", "only 100", "endless head", "resets", "closes early"],
)
async def test_once_sent_and_without_an_answer_it_is_unknown(
    outside: Outside, r: Receiver, mood: Mood, why: str | None
) -> None:
    """`closes_early` leaves bytes unread, so its end arrives as a close or as a reset."""
    r.mood = mood
    started = time.monotonic()

    answer = await outside.post(r.url, bytes(8 * 1024 * 1024), {}, within=SHORT if mood in {hangs, deaf} else LONG)

    assert isinstance(answer, Unknown)
    assert why is None or answer.why == why
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
        (nobody_there, "no connection"),
        (behind_tls, "nothing came back within 0.3 s"),
        (refused_by_us, "url: does not begin with https://"),
        (without_address, "the name does not resolve"),
    ],
)
async def test_what_never_got_that_far_was_not_sent(
    r: Receiver, where: Callable[[Receiver], Awaitable[str]], why: str
) -> None:
    async def empty(_host: str, _port: int) -> list[str]:
        return []

    async with Outside(HOUSE, lookup=empty) as outside:
        answer = await outside.post(await where(r), b"", {}, within=SHORT)

    assert answer == NotSent(why)
    assert r.requests == []


async def test_a_lookup_that_hangs_was_not_sent() -> None:
    async def lost(_host: str, _port: int) -> list[str]:
        await asyncio.Event().wait()
        return []

    async with Outside(HOUSE, lookup=lost) as outside:
        assert isinstance(await outside.post("http://hooks.house/", b"", {}, within=SHORT), NotSent)


async def test_a_header_with_a_line_break_is_not_sent(outside: Outside, r: Receiver) -> None:
    answer = await outside.post(r.url, b"", {"x": "a\r\nx-evil: b"}, within=LONG)

    assert answer == NotSent("the request's headers are not HTTP")
    assert isinstance(await outside.post(r.url, b"", {}, within=LONG), Answered)
    assert ["x-evil" in request.headers for request in r.requests] == [False]


async def test_whoever_waits_for_a_free_connection_in_vain_has_sent_nothing(
    r: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "MOST_CONNECTIONS", 1)
    r.mood = hangs
    async with Outside(HOUSE) as outside, asyncio.TaskGroup() as tasks:
        holder = tasks.create_task(outside.post(r.url, b"first", {}, within=LONG))
        await r.received(1)

        assert isinstance(await outside.post(r.url, b"second", {}, within=SHORT), NotSent)
        holder.cancel()

    assert [request.body for request in r.requests] == [b"first"]


async def test_a_caller_who_leaves_takes_the_connection_along(outside: Outside, r: Receiver) -> None:
    r.mood = hangs
    caller = asyncio.create_task(outside.post(r.url, b"", {}, within=LONG))
    await r.received(1)

    caller.cancel()

    with pytest.raises(asyncio.CancelledError):
        await caller
    await until(lambda: r.open == 0)


async def test_closing_ends_what_was_kept(r: Receiver) -> None:
    async with Outside(HOUSE) as outside:
        await outside.post(r.url, b"", {}, within=LONG)
        assert r.open == 1

    await until(lambda: r.open == 0)


async def test_an_answer_shows_neither_headers_nor_body_by_accident() -> None:
    assert repr(Answered(200, {"set-cookie": "s3cret"}, b"s3cret")) == "Answered(status=200, whole=True)"


@pytest.mark.parametrize(
    ("raw", "became"),
    [
        (b"HTTP/1.1 102 Processing\r\nx: y\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", (200, b"ok", True)),
        (b"HTTP/1.1 200 OK\r\n\r\nuntil the end", (200, b"until the end", True)),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nshort", (200, b"short", False)),
        (b"HTTP/1.1 204 No Content\r\n\r\n", (204, b"", True)),
    ],
    ids=["a word in between", "ends with the connection", "ends too early", "no body"],
)
async def test_an_answer_ends_where_it_says(
    outside: Outside, r: Receiver, raw: bytes, became: tuple[int, bytes, bool]
) -> None:
    r.mood = says(raw)

    answer = await outside.post(r.url, b"", {}, within=LONG)

    assert isinstance(answer, Answered)
    assert (answer.status, answer.body, answer.whole) == became
    assert "x" not in answer.headers


async def test_what_follows_an_answer_spoils_the_connection_and_not_the_answer(outside: Outside, r: Receiver) -> None:
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"

    async def talkative(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        writer.write(answer + b"ok" + answer + b"no")
        return True

    r.mood = talkative

    for _ in range(2):
        assert (await outside.post(r.url, b"", {}, within=LONG)) == Answered(200, {"content-length": "2"}, b"ok")

    assert [request.connection for request in r.requests] == [1, 2]


async def test_a_head_without_end_is_no_answer(outside: Outside, r: Receiver) -> None:
    r.mood = says(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000)

    assert isinstance(await outside.post(r.url, b"", {}, within=LONG), Unknown)
