"""Slow and oversized requests are cut off without affecting other clients."""

import socket
import struct

import httpx2
import pytest

from pabal.web.server.connections import CloseReason
from pabal.web.server.protocol import BODY_GRACE, HEAD_TIMEOUT, LINGER, MAX_HEAD_BYTES, MAX_HEADERS, MIN_BODY_RATE
from support.raw_http import edge_server, exchange, get, raw_client, statuses
from support.wait import wait_until

pytestmark = pytest.mark.anyio

POST = b"POST /body HTTP/1.1\r\nhost: hub\r\n"
CHUNKED = b"POST /headers HTTP/1.1\r\nhost: hub\r\ntransfer-encoding: chunked\r\n\r\n"


async def test_an_endless_head_is_rejected(web: httpx2.AsyncClient) -> None:
    assert web.base_url.port
    response = await exchange(web.base_url.port, b"GET /healthz HTTP/1.1\r\nhost: hub\r\nx-long: " + b"a" * 500_000)

    assert statuses(response) in ([431], [])  # a client that is still sending may not see the response
    assert (await web.get("/healthz")).status_code == 200


@pytest.mark.parametrize("size", [MAX_HEAD_BYTES + 1, 40_000, 60_000])
async def test_a_head_above_the_limit_is_rejected(web: httpx2.AsyncClient, size: int) -> None:
    assert web.base_url.port
    response = await exchange(web.base_url.port, get("/healthz", f"x-long: {'a' * size}"))

    assert statuses(response) == [431]


async def test_a_head_below_the_limit_is_accepted_in_one_piece_and_in_many() -> None:
    request = get("/", "connection: close", f"authorization: Bearer {'a' * 8000}", f"cookie: a={'b' * 7500}")
    pieces = [request[start : start + 500] for start in range(0, len(request), 500)]
    async with edge_server() as edge:
        assert statuses(await exchange(edge.port, request)) == [200]
        async with raw_client(edge.port) as client:
            for piece in pieces:
                client.send(piece)
                await client.writer.drain()
            assert statuses(await client.until_closed()) == [200]


async def test_a_head_with_too_many_headers_is_rejected() -> None:
    async with edge_server() as edge:
        fits = await exchange(edge.port, get("/", "connection: close", *["a: b"] * (MAX_HEADERS - 2)))
        exceeds = await exchange(edge.port, get("/", "connection: close", *["a: b"] * (MAX_HEADERS - 1)))

    assert statuses(fits) == [200]
    assert statuses(exceeds) == [431]


async def test_empty_lines_before_a_request_count_as_head() -> None:
    async with edge_server() as edge:
        assert statuses(await exchange(edge.port, b"\r\n" * MAX_HEAD_BYTES)) == [431]


@pytest.mark.parametrize(
    "trailer",
    [b"x: " + b"a" * 40_000, b"x: a\r\n" * 8000, b"x: a\r\n" * 4000 + b"\r\n"],
    ids=["one endless trailer", "endless trailers", "a large trailer block"],
)
async def test_trailers_count_as_head(trailer: bytes) -> None:
    async with edge_server() as edge:
        assert statuses(await exchange(edge.port, CHUNKED + b"1\r\na\r\n0\r\n" + trailer)) == [431]


async def test_an_endless_chunk_extension_is_rejected() -> None:
    async with edge_server() as edge:
        assert statuses(await exchange(edge.port, CHUNKED + b"1;" + b"a" * 100_000)) == [431]


async def test_trailers_are_not_headers() -> None:
    trailers = b"x-forwarded-for: 10.0.0.1\r\nauthorization: Bearer secret\r\n\r\n"
    async with edge_server() as edge, raw_client(edge.port) as client:
        client.send(CHUNKED + b"1\r\na\r\n0\r\n" + trailers)
        await client.response_head()
        assert await client.reader.readuntil(b"]") == b"['host', 'transfer-encoding']"


async def test_a_body_sent_with_its_head_does_not_count_as_head(web: httpx2.AsyncClient) -> None:
    assert web.base_url.port
    body = b"a" * 200_000
    head = b"POST /v1/queue/events HTTP/1.1\r\nhost: hub\r\ncontent-length: %d\r\n\r\n" % len(body)
    async with raw_client(web.base_url.port) as client:
        client.send(head + body)  # in one write, so that the server reads both at once
        assert statuses(await client.response_head()) == [401]


@pytest.mark.parametrize("head", [b"", b"GET / HTTP/1.1\r\nhost:", b"\r\n"])
async def test_a_slow_head_times_out(head: bytes) -> None:
    async with edge_server() as edge, raw_client(edge.port) as client:
        client.send(head)
        await edge.until_connected(1)
        edge.sweep(HEAD_TIMEOUT - 1)
        assert edge.connections

        edge.sweep(HEAD_TIMEOUT + 1)
        assert await client.until_closed() == b""

    assert edge.server.table.closed[CloseReason.HEAD_TIMEOUT] == 1


async def test_a_slow_head_on_a_kept_alive_connection_times_out() -> None:
    async with edge_server() as edge, raw_client(edge.port) as client:
        client.send(get() + b"GET / HTTP/1.1\r\nhost:")
        await client.response_head()
        edge.sweep(HEAD_TIMEOUT + 1)
        assert await client.until_closed() == b"ok"

    assert edge.server.table.closed[CloseReason.HEAD_TIMEOUT] == 1


async def test_an_idle_connection_is_kept_for_a_while() -> None:
    async with edge_server() as edge, raw_client(edge.port) as client:
        client.send(get())
        await client.response_head()
        keep_alive = edge.server.config.timeout_keep_alive
        edge.sweep(keep_alive - 1)
        client.send(get())
        await client.response_head()
        edge.sweep(keep_alive + 1)
        assert await client.until_closed() == b"ok"


async def test_a_body_that_trickles_is_cut_off() -> None:
    async with edge_server() as edge, raw_client(edge.port) as client:
        client.send(POST + b"content-length: 100000\r\n\r\na")
        await wait_until(lambda: edge.handled == ["/body"])
        edge.sweep(BODY_GRACE - 1)
        assert edge.disconnects == 0

        edge.sweep(BODY_GRACE + 1)
        assert statuses(await client.response_head()) == [408]
        await wait_until(lambda: edge.disconnects == 1)

    assert edge.server.table.closed[CloseReason.BODY_TIMEOUT] == 1


async def test_a_slow_body_at_the_minimum_rate_arrives() -> None:
    seconds = 300
    async with edge_server() as edge, raw_client(edge.port) as client:
        client.send(POST + b"content-length: %d\r\n\r\n" % (MIN_BODY_RATE * seconds + 1))
        client.send(b"a" * MIN_BODY_RATE * seconds)
        await client.writer.drain()
        await wait_until(
            lambda: edge.handled == ["/body"] and edge.connections[0]._body_bytes == MIN_BODY_RATE * seconds
        )
        edge.sweep(BODY_GRACE + seconds - 1)  # the old limit was 30 seconds for the whole body
        client.send(b"a")

        assert statuses(await client.response_head()) == [200]


async def test_a_body_timeout_does_not_interrupt_a_response() -> None:
    async with edge_server() as edge, raw_client(edge.port) as client:
        client.send(b"POST /authenticated HTTP/1.1\r\nhost: hub\r\ncontent-length: 100\r\n\r\n")
        assert statuses(await client.response_head()) == [200]
        edge.sweep(BODY_GRACE + 1)
        assert await client.until_closed() == b"ok"  # and no second response


async def test_a_body_that_no_handler_reads_is_discarded_up_to_a_limit() -> None:
    async with edge_server() as edge:
        async with raw_client(edge.port) as client:
            client.send(b"POST / HTTP/1.1\r\nhost: hub\r\ncontent-length: 100000000\r\n\r\n")
            assert statuses(await client.response_head()) == [200]
            with pytest.raises(ConnectionError):
                while True:
                    client.send(bytes(100_000))
                    await client.writer.drain()
        await edge.until_connected(0)


async def test_an_upgrade_is_ignored_and_the_request_answered() -> None:
    upgrade = get("/", "connection: upgrade, http2-settings", "upgrade: h2c")
    async with edge_server() as edge:
        response = await exchange(edge.port, upgrade + b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")

    assert statuses(response) == [200]


async def test_a_refused_client_that_stays_connected_is_disconnected() -> None:
    async with edge_server() as edge, raw_client(edge.port) as client:
        client.send(b"NONSENSE\r\n\r\n")
        assert statuses(await client.response_head()) == [400]
        await edge.until_connected(1)
        edge.sweep(LINGER + 1)
        await edge.until_connected(0)


async def test_a_request_that_is_handled_for_long_does_not_time_out() -> None:
    async with edge_server() as edge, raw_client(edge.port) as client:
        client.send(get("/wait"))
        await wait_until(lambda: edge.handled == ["/wait"])
        edge.sweep(3600)
        edge.release.set()
        assert statuses(await client.response_head()) == [200]


async def test_a_connection_that_was_just_reset_does_not_disturb_the_check_of_timeouts() -> None:
    async with edge_server() as edge:
        with socket.create_connection(("127.0.0.1", edge.port)) as client:
            client.sendall(POST + b"content-length: 100000\r\n\r\na")
            await wait_until(lambda: edge.handled == ["/body"])
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        edge.sweep(BODY_GRACE + 1)  # before the event loop has noticed the reset
        await edge.until_connected(0)
