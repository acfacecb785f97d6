"""Following events: none is missed, however long its transaction was open, and none is repeated."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from datetime import timedelta
from uuid import UUID

import pytest

from pabal.events.follow import EventFollower
from pabal.hub import DatabaseUrls, Hub
from support.clusters import Connection, open_connection
from support.subscriptions import publish_test_event

pytestmark = pytest.mark.anyio

NO_LOOKBACK = timedelta()
"""Treat every open transaction as a long one."""


@pytest.fixture
async def shops(database_urls: DatabaseUrls) -> AsyncGenerator[list[Connection]]:
    """Two publishers with their own connections."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(open_connection(database_urls.main)) for _ in range(2)]


async def publish(shop: Connection) -> UUID:
    return await shop.fetchval("select pabal.publish('minu_find', 'order.paid', target => 'minu_build')")


async def start_follower(hub: Hub) -> EventFollower:
    follower = EventFollower(lookback=NO_LOOKBACK)
    async with hub.autocommit() as tx:
        await follower.start(tx)
    return follower


async def poll_new(hub: Hub, follower: EventFollower) -> list[UUID]:
    async with hub.autocommit() as tx:
        return [change.event.id for change in await follower.poll(tx) if change.kind == "came"]


async def test_an_event_is_reported_when_its_transaction_commits(hub: Hub, shops: list[Connection]) -> None:
    early, late = shops
    follower = await start_follower(hub)
    async with early.transaction():
        first = await publish(early)
        async with late.transaction():
            await late.execute("select 1")
            meanwhile = [await publish_test_event(hub, "order.sent") for _ in range(3)]
            assert await poll_new(hub, follower) == meanwhile
            second = await publish(late)  # its transaction began earlier, but writes only now
            assert await poll_new(hub, follower) == []
        assert await poll_new(hub, follower) == [second]
        last = await publish_test_event(hub, "order.sent")
        assert await poll_new(hub, follower) == [last]
    assert await poll_new(hub, follower) == [first]
    assert await poll_new(hub, follower) == []


async def test_earlier_events_are_not_reported_when_an_old_transaction_commits(
    hub: Hub, shops: list[Connection]
) -> None:
    shop, other = shops
    async with shop.transaction():
        await shop.execute("select 1")
        await publish_test_event(hub, "order.sent")
        async with other.transaction():
            await publish(other)
        follower = await start_follower(hub)
        assert await poll_new(hub, follower) == []
        event = await publish(shop)

    assert await poll_new(hub, follower) == [event]


async def test_a_rolled_back_event_is_not_reported(hub: Hub, shops: list[Connection]) -> None:
    shop, _ = shops
    follower = await start_follower(hub)
    undone = shop.transaction()
    await undone.start()
    await publish(shop)
    assert await poll_new(hub, follower) == []
    await undone.rollback()

    assert await poll_new(hub, follower) == []
