"""Following events: none is missed, however long its transaction was open, and none is told twice."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from datetime import timedelta
from uuid import UUID

import pytest

from pabal.events.follow import EventFollower
from pabal.hub import DatabaseUrls, Hub
from support.clusters import Connection, connected
from support.subscriptions import say

pytestmark = pytest.mark.anyio

AT_ONCE = timedelta()
"""Every transaction that is open is open for long."""


@pytest.fixture
async def shops(database_urls: DatabaseUrls) -> AsyncGenerator[list[Connection]]:
    """Publishers with connections of their own."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(connected(database_urls.main)) for _ in range(2)]


async def publish(shop: Connection) -> UUID:
    return await shop.fetchval("select pabal.publish('minu_find', 'order.paid', target => 'minu_build')")


async def begun(hub: Hub) -> EventFollower:
    tail = EventFollower(lookback=AT_ONCE)
    async with hub.autocommit() as tx:
        await tail.start(tx)
    return tail


async def came(hub: Hub, tail: EventFollower) -> list[UUID]:
    async with hub.autocommit() as tx:
        return [each.event.id for each in await tail.poll(tx) if each.kind == "came"]


async def test_an_event_comes_when_its_transaction_ends(hub: Hub, shops: list[Connection]) -> None:
    early, late = shops
    tail = await begun(hub)
    async with early.transaction():
        first = await publish(early)
        async with late.transaction():
            await late.execute("select 1")
            meanwhile = [await say(hub, "order.sent") for _ in range(3)]
            assert await came(hub, tail) == meanwhile
            second = await publish(late)  # it began long ago, and wrote only now
            assert await came(hub, tail) == []
        assert await came(hub, tail) == [second]
        last = await say(hub, "order.sent")
        assert await came(hub, tail) == [last]
    assert await came(hub, tail) == [first]
    assert await came(hub, tail) == []


async def test_what_was_there_before_is_not_told_when_an_old_transaction_ends(
    hub: Hub, shops: list[Connection]
) -> None:
    shop, other = shops
    async with shop.transaction():
        await shop.execute("select 1")
        await say(hub, "order.sent")
        async with other.transaction():
            await publish(other)
        tail = await begun(hub)
        assert await came(hub, tail) == []
        event = await publish(shop)

    assert await came(hub, tail) == [event]


async def test_one_that_is_called_off_brings_nothing(hub: Hub, shops: list[Connection]) -> None:
    shop, _ = shops
    tail = await begun(hub)
    undone = shop.transaction()
    await undone.start()
    await publish(shop)
    assert await came(hub, tail) == []
    await undone.rollback()

    assert await came(hub, tail) == []
