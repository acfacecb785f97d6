"""A client that sends requests faster than it reads responses costs the hub a handful of requests."""

import asyncio
import time

import httpx2
import pytest

from pabal.web.server.connections import CloseReason
from pabal.web.server.protocol import MAX_WAITING_REQUESTS
from support.raw_http import edge_server, exchange, get, raw_client, statuses
from support.wait import wait_until

pytestmark = pytest.mark.anyio

MAX_CPU_SECONDS = 0.5
"""Fifteen thousand pipelined requests used to take two seconds."""


async def test_fifteen_thousand_pipelined_requests_are_cut_off_after_a_handful(web: httpx2.AsyncClient) -> None:
    assert web.base_url.port
    started = time.thread_time()
    response = await exchange(web.base_url.port, get("/healthz") * 15_000)

    assert set(statuses(response)) <= {200}
    assert len(statuses(response)) <= 1 + MAX_WAITING_REQUESTS
    assert time.thread_time() - started < MAX_CPU_SECONDS


async def test_the_response_before_the_cut_says_that_the_connection_closes() -> None:
    async with edge_server() as edge, raw_client(edge.port) as client:
        client.send(b"".join(get(f"/{number}") for number in range(10)))
        response = await client.until_closed()

    assert statuses(response) == [200] * (1 + MAX_WAITING_REQUESTS)
    assert response.count(b"connection: close") == 1  # the client knows that the rest is unprocessed
    assert edge.handled == [f"/{number}" for number in range(1 + MAX_WAITING_REQUESTS)]
    assert edge.server.table.closed[CloseReason.PIPELINING] == 1


async def test_a_handful_of_pipelined_requests_is_answered_in_order() -> None:
    async with edge_server() as edge, raw_client(edge.port) as client:
        requests = [get(f"/{number}") for number in range(1 + MAX_WAITING_REQUESTS)]
        for _ in range(3):
            client.send(*requests)
            heads = [await client.response_head() for _ in requests]
            assert all(head.startswith(b"ok" * (index > 0) + b"HTTP/1.1 200") for index, head in enumerate(heads))
            assert await client.reader.readexactly(2) == b"ok"

    assert edge.handled == [f"/{number}" for number in range(1 + MAX_WAITING_REQUESTS)] * 3


async def test_no_more_is_read_while_requests_wait() -> None:
    async with edge_server() as edge, raw_client(edge.port) as client:
        client.send(get("/wait") + get("/next"))
        await wait_until(lambda: edge.handled == ["/wait"])
        [connection] = edge.connections

        assert connection.flow.read_paused
        edge.release.set()
        assert (await client.response_head()).startswith(b"HTTP/1.1 200")
        await wait_until(lambda: edge.handled == ["/wait", "/next"] and not connection.flow.read_paused)


async def test_no_more_is_read_while_a_response_is_not_taken() -> None:
    async with edge_server() as edge, raw_client(edge.port) as client:
        client.pause_reading()
        client.send(get("/large"))
        await wait_until(lambda: [connection.flow.write_paused for connection in edge.connections] == [True])
        [connection] = edge.connections

        assert connection.flow.read_paused
        client.send(get("/large") * 100)
        assert edge.handled == ["/large"]
        assert not connection.pipeline


async def test_a_client_that_takes_nothing_of_its_response_is_disconnected() -> None:
    async with edge_server() as edge, raw_client(edge.port) as client:
        client.pause_reading()
        client.send(get("/large"))
        await wait_until(lambda: [connection.flow.write_paused for connection in edge.connections] == [True])
        edge.sweep()
        edge.sweep(59)
        assert edge.connections

        edge.sweep(61)
        await edge.until_connected(0)

    assert edge.server.table.closed[CloseReason.UNREAD_RESPONSE] == 1


async def test_a_malformed_request_behind_a_valid_one_does_not_take_its_response() -> None:
    async with edge_server() as edge, raw_client(edge.port) as client:
        client.send(get("/wait"))
        await wait_until(lambda: edge.handled == ["/wait"])
        client.send(b"NONSENSE\r\n\r\n")
        await wait_until(lambda: edge.server.table.closed[CloseReason.MALFORMED] == 1)
        edge.release.set()
        response = await client.until_closed()

    assert statuses(response) == [200]


async def test_a_waiting_request_with_a_malformed_body_is_not_handled() -> None:
    chunked = b"POST /body HTTP/1.1\r\nhost: hub\r\ntransfer-encoding: chunked\r\n\r\nnonsense\r\n"
    async with edge_server() as edge, raw_client(edge.port) as client:
        client.send(get("/wait") + get("/next") + chunked)
        await wait_until(lambda: edge.server.table.closed[CloseReason.MALFORMED] == 1)
        edge.release.set()
        response = await client.until_closed()

    assert statuses(response) == [200, 200]
    assert edge.handled == ["/wait", "/next"]


async def test_a_disconnect_reaches_the_request_that_runs_and_not_only_the_last_one() -> None:
    body = b"POST /body HTTP/1.1\r\nhost: hub\r\ncontent-length: 10\r\n\r\n"
    async with edge_server() as edge:
        async with raw_client(edge.port) as client:
            client.send(body)
            await wait_until(lambda: edge.handled == ["/body"])
        await edge.until_connected(0)
        await wait_until(lambda: edge.disconnects == 1)
        assert not [task for task in edge.server.server_state.tasks if not task.done()]


async def test_ten_floods_do_not_keep_others_waiting(web: httpx2.AsyncClient) -> None:
    assert web.base_url.port
    started = time.thread_time()
    floods = await asyncio.gather(*(exchange(web.base_url.port, get("/healthz") * 15_000) for _ in range(10)))

    assert (await web.get("/healthz")).status_code == 200
    assert max(len(statuses(flood)) for flood in floods) <= 1 + MAX_WAITING_REQUESTS
    assert time.thread_time() - started < 10 * MAX_CPU_SECONDS
