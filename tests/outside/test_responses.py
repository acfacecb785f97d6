"""Reading responses: size and time limits, and where a response ends."""

import asyncio
import gzip
import time
import tracemalloc
from datetime import timedelta

import pytest

from pabal.outside.http import MAX_RESPONSE_BODY, HttpClient, HttpResponse, NoResponse
from pabal.outside.http1 import READ_BYTES
from support.receiver import (
    Receiver,
    Responder,
    drip_body,
    endless_body,
    endless_trailers,
    hang_after_headers,
    respond_with,
    send_raw,
)
from support.wait import wait_until

pytestmark = pytest.mark.anyio

LONG = timedelta(seconds=10)
SHORT = timedelta(seconds=0.3)
MAX_SECONDS = 3.0


async def test_an_endless_body_is_cut_and_its_connection_closed(outside: HttpClient, remote: Receiver) -> None:
    remote.responder = endless_body()

    tracemalloc.start()
    try:
        response = await outside.post(remote.url, b"", {}, time_limit=LONG)
        _now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert isinstance(response, HttpResponse)
    assert (response.status, len(response.body), response.is_complete) == (200, MAX_RESPONSE_BODY, False)
    assert peak < 4 * 1024 * 1024
    await wait_until(lambda: remote.open == 0)


TRAILERS = {
    "many": endless_trailers(b"x-more: %b\r\n" % (b"a" * 4000)),
    "one": endless_trailers(b"a" * 4000, b"x-more: "),
}


@pytest.mark.parametrize("responder", TRAILERS.values(), ids=TRAILERS)
async def test_endless_trailers_are_cut_and_are_not_headers(
    outside: HttpClient, remote: Receiver, responder: Responder
) -> None:
    remote.responder = responder

    tracemalloc.start()
    try:
        response = await outside.post(remote.url, b"", {}, time_limit=LONG / 5)
        _now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert response == HttpResponse(200, {"transfer-encoding": "chunked"}, b"ok", is_complete=False)
    assert peak < 4 * 1024 * 1024
    await wait_until(lambda: remote.open == 0)


async def test_a_body_of_exactly_the_limit_is_complete(outside: HttpClient, remote: Receiver) -> None:
    remote.responder = respond_with(body=b"x" * MAX_RESPONSE_BODY)

    response = await outside.post(remote.url, b"", {}, time_limit=LONG)

    assert isinstance(response, HttpResponse)
    assert (len(response.body), response.is_complete) == (MAX_RESPONSE_BODY, True)


async def test_a_body_of_tiny_chunks_does_not_block_other_tasks(outside: HttpClient, remote: Receiver) -> None:
    chunks = 5000
    remote.responder = send_raw(
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * chunks + b"0\r\n\r\n"
    )
    iterations = 0

    async def count_iterations() -> None:
        nonlocal iterations
        while True:
            await asyncio.sleep(0)
            iterations += 1

    counter = asyncio.create_task(count_iterations())
    response = await outside.post(remote.url, b"", {}, time_limit=LONG)
    counter.cancel()

    assert isinstance(response, HttpResponse)
    assert response.body == b"x" * chunks
    assert iterations >= chunks * len(b"1\r\nx\r\n") / READ_BYTES


async def test_a_compressed_body_is_not_decompressed(outside: HttpClient, remote: Receiver) -> None:
    bomb = gzip.compress(bytes(10 * 1024 * 1024))
    remote.responder = respond_with(body=bomb, headers={"content-encoding": "gzip"})

    response = await outside.post(remote.url, b"", {}, time_limit=LONG)

    assert isinstance(response, HttpResponse)
    assert response.body == bomb


@pytest.mark.parametrize("responder", [drip_body(), hang_after_headers()], ids=["drips", "hangs after headers"])
async def test_a_status_is_returned_though_its_body_never_ends(
    outside: HttpClient, remote: Receiver, responder: Responder
) -> None:
    remote.responder = responder
    started = time.monotonic()

    response = await outside.post(remote.url, b"", {}, time_limit=SHORT)

    assert isinstance(response, HttpResponse)
    assert (response.status, response.is_complete) == (200, False)
    assert time.monotonic() - started < MAX_SECONDS
    await wait_until(lambda: remote.open == 0)


async def test_a_truncated_body_is_not_complete(outside: HttpClient, remote: Receiver) -> None:
    remote.responder = send_raw(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab")

    assert await outside.post(remote.url, b"", {}, time_limit=LONG) == HttpResponse(
        200, {"content-length": "5"}, b"ab", is_complete=False
    )


async def test_the_repr_of_a_response_has_neither_headers_nor_body() -> None:
    assert repr(HttpResponse(200, {"set-cookie": "s3cret"}, b"s3cret")) == "HttpResponse(status=200, is_complete=True)"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"HTTP/1.1 102 Processing\r\nx: y\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", (200, b"ok", True)),
        (b"HTTP/1.1 200 OK\r\n\r\nuntil the end", (200, b"until the end", True)),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nshort", (200, b"short", False)),
        (b"HTTP/1.1 204 No Content\r\n\r\n", (204, b"", True)),
    ],
    ids=["informational response", "ends with the connection", "ends too early", "no body"],
)
async def test_a_response_ends_at_its_declared_end(
    outside: HttpClient, remote: Receiver, raw: bytes, expected: tuple[int, bytes, bool]
) -> None:
    remote.responder = send_raw(raw)

    response = await outside.post(remote.url, b"", {}, time_limit=LONG)

    assert isinstance(response, HttpResponse)
    assert (response.status, response.body, response.is_complete) == expected
    assert "x" not in response.headers


async def test_extra_bytes_after_a_response_close_the_connection(outside: HttpClient, remote: Receiver) -> None:
    response = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"

    async def send_twice(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        writer.write(response + b"ok" + response + b"no")
        return True

    remote.responder = send_twice

    for _ in range(2):
        assert (await outside.post(remote.url, b"", {}, time_limit=LONG)) == HttpResponse(
            200, {"content-length": "2"}, b"ok"
        )

    assert [request.connection for request in remote.requests] == [1, 2]


async def test_endless_headers_are_no_response(outside: HttpClient, remote: Receiver) -> None:
    remote.responder = send_raw(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000)

    assert isinstance(await outside.post(remote.url, b"", {}, time_limit=LONG), NoResponse)
