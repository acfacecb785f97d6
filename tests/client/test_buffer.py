"""The buffer: batches by size and by time, callers who wait when it is full, and an answer for every event."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest

from client.ways import Line, Way
from conftest import connection
from pabal.client import Client, HubUnavailableError, PermissionDeniedError, ValidationFailedError
from pabal.hub import DatabaseUrls, Hub
from support.oauth_client import enrol
from support.receiver import PATIENCE, Mood, Receiver, answers, hangs, receiver, slow
from support.wait import until

pytestmark = pytest.mark.anyio

Publish = Callable[..., Awaitable[Awaitable[UUID]]]
"""Puts an event into the buffer; what it gives brings the event's id."""
Buffering = Callable[..., AbstractAsyncContextManager[Publish]]

HOUR = 3600.0
TOKEN = answers(200, b'{"access_token": "a", "expires_in": 3600}')


@pytest.fixture
def buffering(kind: str) -> Buffering:
    """Both buffers under the same sentences: the one that waits is given a thread for each call."""

    @asynccontextmanager
    async def opened(way: Way, **how: Any) -> AsyncGenerator[Publish]:
        if kind == "awaits":
            async with way.client(timeout=5.0) as client, client.buffer(**how) as buffer:
                yield buffer.publish
            return
        with Client(way.address, way.service, way.secret, timeout=5.0) as client:
            waiting = client.buffer(**how)
            waiting.__enter__()

            async def publish(*given: Any, **named: Any) -> Awaitable[UUID]:
                return asyncio.wrap_future(await asyncio.to_thread(waiting.publish, *given, **named))

            try:
                yield publish
            finally:
                await asyncio.to_thread(waiting.close)

    return opened


@pytest.fixture
async def there() -> AsyncGenerator[Receiver]:
    async with receiver() as one:
        one.script.append(TOKEN)
        yield one


@pytest.fixture
def way(there: Receiver) -> Way:
    return Way(f"http://127.0.0.1:{there.port}", "shop", "pbs_secret")


def taken(many: int) -> Mood:
    return answers(200, json.dumps({"results": [{"status": 202, "id": str(uuid4())} for _ in range(many)]}).encode())


def sizes(there: Receiver) -> list[int]:
    return [len(json.loads(request.body)["events"]) for request in there.requests[1:]]


async def test_everything_is_published_in_order_when_the_block_ends(
    buffering: Buffering, shop: Way, database_urls: DatabaseUrls
) -> None:
    async with buffering(shop, every=HOUR) as publish:
        answered = [await publish("a.b", {"n": n}, target_service="minu_find") for n in range(1500)]
    ids = [await each for each in answered]

    async with connection(database_urls.main) as database:
        rows = await database.fetch("select id, payload from event_queue where event_type = 'a.b' order by seq")
    assert [row["id"] for row in rows] == ids
    assert [json.loads(row["payload"])["n"] for row in rows] == [*range(1500)]


async def test_a_batch_goes_when_it_is_full(buffering: Buffering, there: Receiver, way: Way) -> None:
    there.mood = taken(1000)
    async with buffering(way, every=HOUR) as publish:
        for _ in range(999):
            await publish("a.b")
        assert len(there.requests) == 0
        answer = await publish("a.b")
        async with asyncio.timeout(PATIENCE):
            await answer

        assert sizes(there) == [1000]


async def test_a_batch_goes_after_a_while(buffering: Buffering, there: Receiver, way: Way) -> None:
    there.mood = taken(1)
    async with buffering(way, every=0.01) as publish:
        await (await publish("a.b"))

        assert sizes(there) == [1]


async def test_a_full_buffer_makes_its_callers_wait(buffering: Buffering, there: Receiver, way: Way) -> None:
    release = asyncio.Event()
    there.mood = slow(release, taken(3))
    async with buffering(way, most=3, every=HOUR) as publish:
        for _ in range(3):
            await publish("a.b")
        await there.received(2)
        fourth = asyncio.ensure_future(publish("a.b"))
        try:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await asyncio.shield(fourth)
        finally:
            there.mood = taken(1)
            release.set()
        await fourth

    assert sizes(there) == [3, 1]


async def test_each_event_hears_its_own_fate(buffering: Buffering, shop: Way) -> None:
    async with buffering(shop) as publish:
        good = await publish("a.b")
        bad = await publish("NOT A TYPE")
        odd = await publish("a.b", {"text": "\0"})
        last = await publish("a.b")

    assert isinstance(await good, UUID)
    assert isinstance(await last, UUID)
    for each in (bad, odd):
        with pytest.raises(ValidationFailedError):
            await each


async def test_a_service_that_may_not_publish_hears_it_of_each(
    buffering: Buffering, hub: Hub, web: httpx2.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    reader = await enrol(hub, web, "reader", "events:read")
    async with buffering(Way(str(web.base_url), reader.name, reader.secret)) as publish:
        answered = [await publish("a.b") for _ in range(3)]

    for each in answered:
        with pytest.raises(PermissionDeniedError):
            await each
    assert "events unpublished: 3" in caplog.text


async def test_a_lost_answer_publishes_nothing_twice(
    buffering: Buffering, shop: Way, line: tuple[Line, str], database_urls: DatabaseUrls
) -> None:
    between, address = line
    async with buffering(Way(address, shop.service, shop.secret), every=0.01) as publish:
        await (await publish("a.b"))
        between.lose = 1
        answered = [await publish("a.b", {"n": n}) for n in range(20)]
    ids = [await each for each in answered]

    async with connection(database_urls.main) as database:
        rows = await database.fetch("select id from event_queue where event_type = 'a.b' and payload ? 'n'")
    assert between.lose == 0
    assert {row["id"] for row in rows} == {*ids}
    assert len(ids) == 20


async def test_a_hub_that_is_away_is_waited_for(buffering: Buffering, there: Receiver, way: Way) -> None:
    away = answers(503, headers={"retry-after": "0"})
    there.script.extend([away] * 5)  # as often as one call is repeated by itself
    there.mood = taken(1)
    async with buffering(way, every=0.01) as publish:
        answer = await publish("a.b")

    assert isinstance(await answer, UUID)
    assert len({request.body for request in there.requests[1:]}) == 1
    assert len(there.requests) == 7


async def test_a_hub_that_stays_away_is_told_to_whoever_published(
    buffering: Buffering, there: Receiver, way: Way
) -> None:
    there.mood = answers(503, headers={"retry-after": "0"})
    async with buffering(way, every=0.01, patience=0.0) as publish:
        answer = await publish("a.b")

    with pytest.raises(HubUnavailableError, match="503"):
        await answer


async def test_a_closed_buffer_takes_nothing(buffering: Buffering, shop: Way) -> None:
    async with buffering(shop) as publish:
        pass

    with pytest.raises(RuntimeError, match="closed"):
        await publish("a.b")


async def test_whoever_waits_is_told_when_the_buffer_is_cut_short(there: Receiver, way: Way) -> None:
    there.mood = hangs
    answered: list[Awaitable[UUID]] = []

    async def program() -> None:
        async with way.client() as client, client.buffer(flush_interval=0.01) as buffer:
            answered.append(await buffer.publish("a.b"))
            await there.received(2)
            answered.append(await buffer.publish("a.b"))

    running = asyncio.create_task(program())
    await until(lambda: len(answered) == 2)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    for each in answered:
        with pytest.raises(HubUnavailableError, match="cut short"):
            async with asyncio.timeout(PATIENCE):
                await each
