"""Connections without an authenticated request are limited per address and in all."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from structlog.testing import capture_logs

from pabal.web.request import parse_networks
from pabal.web.server.connections import EVICTABLE_AFTER, LOG_INTERVAL, CloseReason, ConnectionLimits, ConnectionTable
from pabal.web.server.protocol import SLOT_TIMEOUT
from support.raw_http import EdgeServer, RawClient, edge_server, get, raw_client, statuses
from support.wait import wait_until

pytestmark = pytest.mark.anyio

SMALL = ConnectionLimits(total=40, anonymous=20, per_address=10)
TRICKLE = b"POST /body HTTP/1.1\r\nhost: hub\r\ncontent-length: 100\r\n\r\na"


@asynccontextmanager
async def trickling(edge: EdgeServer, count: int) -> AsyncGenerator[list[RawClient]]:
    """Clients that send one byte of a body and nothing more."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(raw_client(edge.port)) for _ in range(count)]
        for client in clients:
            client.send(TRICKLE)
        yield clients


async def test_an_address_is_served_a_limited_number_of_anonymous_connections() -> None:
    async with edge_server(SMALL) as edge, trickling(edge, 30):
        await wait_until(lambda: edge.handled == ["/body"] * 10)
        await wait_until(lambda: edge.server.table.waiting_count == 20)
        edge.sweep()

        assert edge.server.table.anonymous_count == 10
        assert edge.handled == ["/body"] * 10


async def test_an_authenticated_connection_does_not_count() -> None:
    async with edge_server(SMALL) as edge, AsyncExitStack() as stack:
        for _ in range(30):
            client = await stack.enter_async_context(raw_client(edge.port))
            client.send(get("/authenticated"))
            assert statuses(await client.response_head()) == [200]

        assert len(edge.connections) == 30
        assert edge.server.table.anonymous_count == 0


async def test_a_burst_of_clients_from_one_address_is_served_in_turn() -> None:
    limits = ConnectionLimits(total=1000, anonymous=100, per_address=10)
    async with edge_server(limits) as edge, AsyncExitStack() as stack:
        clients = await asyncio.gather(*(stack.enter_async_context(raw_client(edge.port)) for _ in range(500)))
        for client in clients:
            client.send(get("/authenticated"))
        heads = await asyncio.gather(*(client.response_head() for client in clients))

    assert [statuses(head) for head in heads] == [[200]] * 500
    assert edge.server.table.closed.total() == 0


async def test_a_connection_that_gets_its_slot_at_once_is_read() -> None:
    async with edge_server() as edge, raw_client(edge.port) as client:
        await edge.until_connected(1)
        [connection] = edge.connections
        connection.hold()
        connection.serve()  # before the event loop has stopped reading
        await asyncio.sleep(0)
        client.send(get())

        assert statuses(await client.response_head()) == [200]


async def test_a_new_client_replaces_one_that_sends_nothing() -> None:
    async with edge_server(SMALL) as edge, trickling(edge, 15), raw_client(edge.port) as client:
        await wait_until(lambda: edge.handled == ["/body"] * 10)
        client.send(get())
        edge.sweep(EVICTABLE_AFTER + 0.1)

        assert statuses(await client.response_head()) == [200]
        assert edge.server.table.closed[CloseReason.ADDRESS_LIMIT] == 6


async def test_a_request_that_is_handled_is_not_closed_for_another_client() -> None:
    async with edge_server(SMALL) as edge, AsyncExitStack() as stack:
        busy = [await stack.enter_async_context(raw_client(edge.port)) for _ in range(10)]
        for client in busy:
            client.send(get("/wait"))
        await wait_until(lambda: edge.handled == ["/wait"] * 10)
        late = await stack.enter_async_context(raw_client(edge.port))
        late.send(get())
        edge.sweep(SLOT_TIMEOUT - 1)
        edge.release.set()

        assert [statuses(await client.response_head()) for client in (*busy, late)] == [[200]] * 11


async def test_a_connection_that_gets_no_slot_is_closed_after_a_while() -> None:
    async with edge_server(SMALL) as edge, AsyncExitStack() as stack:
        for _ in range(10):
            busy = await stack.enter_async_context(raw_client(edge.port))
            busy.send(get("/wait"))
        await wait_until(lambda: edge.handled == ["/wait"] * 10)
        late = await stack.enter_async_context(raw_client(edge.port))
        late.send(get())
        await wait_until(lambda: edge.server.table.waiting_count == 1)
        edge.sweep(SLOT_TIMEOUT + 1)

        assert await late.until_closed() == b""
        assert edge.server.table.closed[CloseReason.ADDRESS_LIMIT] == 1


async def test_a_full_process_closes_idle_connections_and_goes_on_accepting() -> None:
    limits = ConnectionLimits(total=20, anonymous=20, per_address=20)
    async with edge_server(limits) as edge, trickling(edge, 60), raw_client(edge.port) as client:
        await wait_until(lambda: edge.server.table.is_full)
        client.send(get())
        answer = asyncio.create_task(client.response_head())

        def is_answered() -> bool:
            edge.sweep(EVICTABLE_AFTER + 0.1)
            return answer.done()

        await wait_until(is_answered)
        assert statuses(await answer) == [200]
        assert len(edge.connections) <= 22  # one is accepted while another is set up


async def test_a_flood_of_one_address_does_not_fill_the_process() -> None:
    async with edge_server(SMALL) as edge, trickling(edge, 100), raw_client(edge.port, "127.0.0.2") as client:
        client.send(get())

        assert statuses(await client.response_head()) == [200]  # without waiting for a sweep
        table = edge.server.table
        await wait_until(lambda: table.closed[CloseReason.ADDRESS_LIMIT] == 100 - SMALL.per_address - SMALL.total // 2)
        assert table.waiting_count == SMALL.total // 2


async def test_refused_connections_are_logged_once_a_minute() -> None:
    async with edge_server(SMALL) as edge, trickling(edge, 20):
        await wait_until(lambda: edge.handled == ["/body"] * 10)
        with capture_logs() as lines:
            edge.sweep(EVICTABLE_AFTER + 0.1)
            edge.server.table.closed[CloseReason.ADDRESS_LIMIT] += 1
            edge.sweep(EVICTABLE_AFTER + 0.2)
            refusals = [line for line in lines if line["event"] == "connections refused"]
            assert [line["address_limit"] for line in refusals] == [10]

            edge.sweep(LOG_INTERVAL + EVICTABLE_AFTER + 0.2)
        refusals = [line for line in lines if line["event"] == "connections refused"]
        assert len(refusals) == 2


def test_the_limits_follow_from_the_limit_of_open_files() -> None:
    assert ConnectionLimits.of_open_files(1024, 16) == ConnectionLimits(752, 564, 282)
    assert ConnectionLimits.of_open_files(1 << 20, 16) == ConnectionLimits((1 << 20) - 272, 2048, 512)
    assert ConnectionLimits.of_open_files(1 << 20, 16, per_address=0).per_address == 2048
    assert ConnectionLimits.of_open_files(100).total == 64


def test_a_trusted_proxy_has_no_limit_per_address() -> None:
    table = ConnectionTable(SMALL, parse_networks(["10.0.0.0/8"]))

    assert table.address_key("10.1.2.3") == ""
    assert table.address_key("::ffff:10.1.2.3") == ""
    assert table.address_key("192.0.2.1") == "192.0.2.1"
    assert table.address_key("2001:db8::1") == table.address_key("2001:db8::2")
    assert not table.is_address_full("")
