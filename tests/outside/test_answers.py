"""What comes back: how much of it is read, where it ends, and what is made of what has no end."""

import asyncio
import gzip
import time
import tracemalloc
from datetime import timedelta

import pytest

from pabal.outside.http import MAX_RESPONSE_BODY, HttpClient, HttpResponse, NoResponse
from pabal.outside.http1 import READ_BYTES
from support.receiver import (
    Mood,
    Receiver,
    answers,
    drips,
    hangs_after_headers,
    huge,
    says,
    trails,
)
from support.wait import until

pytestmark = pytest.mark.anyio

LONG = timedelta(seconds=10)
SHORT = timedelta(seconds=0.3)
MUCH_LESS_THAN_FOREVER = 3.0


async def test_a_body_without_end_is_cut_and_its_connection_dropped(outside: HttpClient, r: Receiver) -> None:
    r.mood = huge()

    tracemalloc.start()
    try:
        answer = await outside.post(r.url, b"", {}, time_limit=LONG)
        _now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert isinstance(answer, HttpResponse)
    assert (answer.status, len(answer.body), answer.is_complete) == (200, MAX_RESPONSE_BODY, False)
    assert peak < 4 * 1024 * 1024
    await until(lambda: r.open == 0)


TRAILERS = {"many": trails(b"x-more: %b\r\n" % (b"a" * 4000)), "one": trails(b"a" * 4000, b"x-more: ")}


@pytest.mark.parametrize("mood", TRAILERS.values(), ids=TRAILERS)
async def test_trailers_without_end_are_cut_and_are_no_headers(outside: HttpClient, r: Receiver, mood: Mood) -> None:
    r.mood = mood

    tracemalloc.start()
    try:
        answer = await outside.post(r.url, b"", {}, time_limit=LONG / 5)
        _now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert answer == HttpResponse(200, {"transfer-encoding": "chunked"}, b"ok", is_complete=False)
    assert peak < 4 * 1024 * 1024
    await until(lambda: r.open == 0)


async def test_a_body_of_exactly_the_cap_is_whole(outside: HttpClient, r: Receiver) -> None:
    r.mood = answers(body=b"x" * MAX_RESPONSE_BODY)

    answer = await outside.post(r.url, b"", {}, time_limit=LONG)

    assert isinstance(answer, HttpResponse)
    assert (len(answer.body), answer.is_complete) == (MAX_RESPONSE_BODY, True)


async def test_a_body_of_crumbs_lets_others_have_their_turn(outside: HttpClient, r: Receiver) -> None:
    crumbs = 5000
    r.mood = says(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * crumbs + b"0\r\n\r\n")
    turns = 0

    async def another() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    other = asyncio.create_task(another())
    answer = await outside.post(r.url, b"", {}, time_limit=LONG)
    other.cancel()

    assert isinstance(answer, HttpResponse)
    assert answer.body == b"x" * crumbs
    assert turns >= crumbs * len(b"1\r\nx\r\n") / READ_BYTES


async def test_a_packed_body_stays_packed(outside: HttpClient, r: Receiver) -> None:
    bomb = gzip.compress(bytes(10 * 1024 * 1024))
    r.mood = answers(body=bomb, headers={"content-encoding": "gzip"})

    answer = await outside.post(r.url, b"", {}, time_limit=LONG)

    assert isinstance(answer, HttpResponse)
    assert answer.body == bomb


@pytest.mark.parametrize("mood", [drips(), hangs_after_headers()], ids=["drips", "hangs after headers"])
async def test_a_status_counts_though_its_body_never_ends(outside: HttpClient, r: Receiver, mood: Mood) -> None:
    r.mood = mood
    started = time.monotonic()

    answer = await outside.post(r.url, b"", {}, time_limit=SHORT)

    assert isinstance(answer, HttpResponse)
    assert (answer.status, answer.is_complete) == (200, False)
    assert time.monotonic() - started < MUCH_LESS_THAN_FOREVER
    await until(lambda: r.open == 0)


async def test_a_body_that_breaks_off_is_not_whole(outside: HttpClient, r: Receiver) -> None:
    r.mood = says(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab")

    assert await outside.post(r.url, b"", {}, time_limit=LONG) == HttpResponse(
        200, {"content-length": "5"}, b"ab", is_complete=False
    )


async def test_the_repr_of_a_response_has_neither_headers_nor_body() -> None:
    assert repr(HttpResponse(200, {"set-cookie": "s3cret"}, b"s3cret")) == "HttpResponse(status=200, is_complete=True)"


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
    outside: HttpClient, r: Receiver, raw: bytes, became: tuple[int, bytes, bool]
) -> None:
    r.mood = says(raw)

    answer = await outside.post(r.url, b"", {}, time_limit=LONG)

    assert isinstance(answer, HttpResponse)
    assert (answer.status, answer.body, answer.is_complete) == became
    assert "x" not in answer.headers


async def test_what_follows_an_answer_spoils_the_connection_and_not_the_answer(
    outside: HttpClient, r: Receiver
) -> None:
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"

    async def talkative(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        writer.write(answer + b"ok" + answer + b"no")
        return True

    r.mood = talkative

    for _ in range(2):
        assert (await outside.post(r.url, b"", {}, time_limit=LONG)) == HttpResponse(
            200, {"content-length": "2"}, b"ok"
        )

    assert [request.connection for request in r.requests] == [1, 2]


async def test_a_head_without_end_is_no_answer(outside: HttpClient, r: Receiver) -> None:
    r.mood = says(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000)

    assert isinstance(await outside.post(r.url, b"", {}, time_limit=LONG), NoResponse)
