"""The buffer: batches by size and time, backpressure when it is full, and a result for every event."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest

from client.connections import HubAddress, LossyProxy
from conftest import connection
from pabal.hub import DatabaseUrls, Hub
from pabal_client import Client, HubUnavailableError, PermissionDeniedError, ValidationFailedError
from support.oauth_client import register_oauth_service
from support.receiver import RECEIVE_TIMEOUT, Receiver, Responder, hang, respond_after, respond_with, run_receiver
from support.wait import wait_until

pytestmark = pytest.mark.anyio

Publish = Callable[..., Awaitable[Awaitable[UUID]]]
"""Adds an event to the buffer; the inner awaitable returns its id."""
Buffering = Callable[..., AbstractAsyncContextManager[Publish]]

HOUR = 3600.0
TOKEN = respond_with(200, b'{"access_token": "a", "expires_in": 3600}')


@pytest.fixture
def buffering(kind: str) -> Buffering:
    """Opens the async or the sync buffer; each call of the sync one runs in a thread."""

    @asynccontextmanager
    async def opened(address: HubAddress, **options: Any) -> AsyncGenerator[Publish]:
        if kind == "async":
            async with address.client(timeout=5.0) as client, client.buffer(**options) as buffer:
                yield buffer.publish
            return
        with Client(address.url, address.service, address.secret, timeout=5.0) as client:
            sync_buffer = client.buffer(**options)
            sync_buffer.__enter__()

            async def publish(*args: Any, **kwargs: Any) -> Awaitable[UUID]:
                return asyncio.wrap_future(await asyncio.to_thread(sync_buffer.publish, *args, **kwargs))

            try:
                yield publish
            finally:
                await asyncio.to_thread(sync_buffer.close)

    return opened


@pytest.fixture
async def server() -> AsyncGenerator[Receiver]:
    async with run_receiver() as fake:
        fake.script.append(TOKEN)
        yield fake


@pytest.fixture
def address(server: Receiver) -> HubAddress:
    return HubAddress(f"http://127.0.0.1:{server.port}", "shop", "pbs_secret")


def accepts(count: int) -> Responder:
    return respond_with(
        200, json.dumps({"results": [{"status": 202, "id": str(uuid4())} for _ in range(count)]}).encode()
    )


def sizes(server: Receiver) -> list[int]:
    return [len(json.loads(request.body)["events"]) for request in server.requests[1:]]


async def test_everything_is_published_in_order_when_the_block_ends(
    buffering: Buffering, shop: HubAddress, database_urls: DatabaseUrls
) -> None:
    async with buffering(shop, flush_interval=HOUR) as publish:
        futures = [await publish("a.b", {"n": n}, target="minu_find") for n in range(1500)]
    ids = [await future for future in futures]

    async with connection(database_urls.main) as database:
        rows = await database.fetch("select id, payload from event_queue where event_type = 'a.b' order by seq")
    assert [row["id"] for row in rows] == ids
    assert [json.loads(row["payload"])["n"] for row in rows] == [*range(1500)]


async def test_a_batch_is_sent_when_it_is_full(buffering: Buffering, server: Receiver, address: HubAddress) -> None:
    server.responder = accepts(1000)
    async with buffering(address, flush_interval=HOUR) as publish:
        for _ in range(999):
            await publish("a.b")
        assert len(server.requests) == 0
        future = await publish("a.b")
        async with asyncio.timeout(RECEIVE_TIMEOUT):
            await future

        assert sizes(server) == [1000]


async def test_a_batch_is_sent_after_the_flush_interval(
    buffering: Buffering, server: Receiver, address: HubAddress
) -> None:
    server.responder = accepts(1)
    async with buffering(address, flush_interval=0.01) as publish:
        await (await publish("a.b"))

        assert sizes(server) == [1]


async def test_a_full_buffer_makes_its_callers_wait(
    buffering: Buffering, server: Receiver, address: HubAddress
) -> None:
    release = asyncio.Event()
    server.responder = respond_after(release, accepts(3))
    async with buffering(address, max_events=3, flush_interval=HOUR) as publish:
        for _ in range(3):
            await publish("a.b")
        await server.wait_for_requests(2)
        fourth = asyncio.ensure_future(publish("a.b"))
        try:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await asyncio.shield(fourth)
        finally:
            server.responder = accepts(1)
            release.set()
        await fourth

    assert sizes(server) == [3, 1]


async def test_each_future_has_the_result_of_its_own_event(buffering: Buffering, shop: HubAddress) -> None:
    async with buffering(shop) as publish:
        good = await publish("a.b")
        bad = await publish("NOT A TYPE")
        odd = await publish("a.b", {"text": "\0"})
        last = await publish("a.b")

    assert isinstance(await good, UUID)
    assert isinstance(await last, UUID)
    for future in (bad, odd):
        with pytest.raises(ValidationFailedError):
            await future


async def test_every_future_fails_without_the_publish_permission(
    buffering: Buffering, hub: Hub, web: httpx2.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    reader = await register_oauth_service(hub, web, "reader", "events:read")
    async with buffering(HubAddress(str(web.base_url), reader.name, reader.secret)) as publish:
        futures = [await publish("a.b") for _ in range(3)]

    for future in futures:
        with pytest.raises(PermissionDeniedError):
            await future
    assert "events not published: 3" in caplog.text


async def test_a_lost_response_does_not_publish_twice(
    buffering: Buffering, shop: HubAddress, line: tuple[LossyProxy, str], database_urls: DatabaseUrls
) -> None:
    between, url = line
    async with buffering(HubAddress(url, shop.service, shop.secret), flush_interval=0.01) as publish:
        await (await publish("a.b"))
        between.lose = 1
        futures = [await publish("a.b", {"n": n}) for n in range(20)]
    ids = [await future for future in futures]

    async with connection(database_urls.main) as database:
        rows = await database.fetch("select id from event_queue where event_type = 'a.b' and payload ? 'n'")
    assert between.lose == 0
    assert {row["id"] for row in rows} == {*ids}
    assert len(ids) == 20


async def test_the_buffer_retries_while_the_hub_is_unavailable(
    buffering: Buffering, server: Receiver, address: HubAddress
) -> None:
    away = respond_with(503, headers={"retry-after": "0"})
    server.script.extend([away] * 5)  # as many as one call retries by itself
    server.responder = accepts(1)
    async with buffering(address, flush_interval=0.01) as publish:
        future = await publish("a.b")

    assert isinstance(await future, UUID)
    assert len({request.body for request in server.requests[1:]}) == 1
    assert len(server.requests) == 7


async def test_a_future_fails_if_the_hub_stays_unavailable(
    buffering: Buffering, server: Receiver, address: HubAddress
) -> None:
    server.responder = respond_with(503, headers={"retry-after": "0"})
    async with buffering(address, flush_interval=0.01, retry_timeout=0.0) as publish:
        future = await publish("a.b")

    with pytest.raises(HubUnavailableError, match="503"):
        await future


async def test_a_closed_buffer_refuses_events(buffering: Buffering, shop: HubAddress) -> None:
    async with buffering(shop) as publish:
        pass

    with pytest.raises(RuntimeError, match="closed"):
        await publish("a.b")


async def test_futures_fail_if_the_buffer_is_cancelled(server: Receiver, address: HubAddress) -> None:
    server.responder = hang
    futures: list[Awaitable[UUID]] = []

    async def program() -> None:
        async with address.client() as client, client.buffer(flush_interval=0.01) as buffer:
            futures.append(await buffer.publish("a.b"))
            await server.wait_for_requests(2)
            futures.append(await buffer.publish("a.b"))

    running = asyncio.create_task(program())
    await wait_until(lambda: len(futures) == 2)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    for future in futures:
        with pytest.raises(HubUnavailableError, match="stopped before the event was sent"):
            async with asyncio.timeout(RECEIVE_TIMEOUT):
                await future


async def test_a_retry_after_in_the_past_does_not_end_the_buffer(
    buffering: Buffering, server: Receiver, address: HubAddress
) -> None:
    busy = respond_with(503, headers={"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"})
    published = respond_with(200, json.dumps({"results": [{"status": 202, "id": str(uuid4())}]}).encode())
    server.script.extend([busy] * 5)
    server.responder = published
    async with buffering(address, flush_interval=0.01) as publish:
        assert await (await publish("order.placed"))
