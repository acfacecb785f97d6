"""Whose turn it is: who is paused, who comes first, and that nobody holds up the others."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from enrolled import enrol
from pabal.events import pull, subscriptions
from pabal.events.pull import Waiting
from pabal.events.push import Pusher, Pushes
from pabal.events.receipt import Receipt
from pabal.queue.outcome import DONE
from pabal.settings import Settings
from pabal.wiring import Hub, Roads, open_hub, sender
from receiver import Receiver, receiver, slow
from subscribed import EVERYBODY, TESTER, ends, event, pause, pushing, resume, say, subscribe

pytestmark = pytest.mark.anyio

MINUTE = timedelta(minutes=1)


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"callback_allow": ["http://127.0.0.1"]})


@pytest.fixture
async def there() -> AsyncGenerator[Receiver]:
    async with receiver() as one:
        yield one


async def test_a_pause_outlives_the_hub_and_loses_nothing(
    hub: Hub, roads: Roads, settings: Settings, there: Receiver
) -> None:
    subscription, _ = await subscribe(hub, "minu_build", "order.*", url=there.url)
    await pause(hub, subscription)
    rows = [await say(hub, "order.paid") for _ in range(3)]
    async with open_hub(settings, roads) as again, receiver() as awake:
        await subscribe(again, "minu_keep", "order.*", url=awake.url)
        async with pushing(again):
            await ends(again, await say(again, "order.paid", "minu_keep"), "completed")
            assert there.requests == []
            assert {(await event(again, row)).status for row in rows} == {"pending"}

            await resume(hub, subscription)
            for row in rows:
                assert (await ends(again, row, "completed")).retry_count == 0

    assert sorted(request.headers["webhook-id"] for request in there.requests) == sorted(map(str, rows))


@pytest.mark.parametrize("deed", [subscriptions.pause, subscriptions.remove])
async def test_what_was_paused_or_removed_after_the_look_gets_nothing(hub: Hub, there: Receiver, deed: Any) -> None:
    """Between a worker's look and its claim somebody is answered: from then on nothing is sent."""
    subscription, _ = await subscribe(hub, "minu_build", "order.*", url=there.url)
    row = await say(hub, "order.paid")
    [turn] = await hub.pusher.rota()
    async with hub.transaction() as tx:
        await deed(tx, subscription.id, EVERYBODY, TESTER)

    async with hub.autocommit() as tx:
        assert await Pushes().claim(tx, 10, MINUTE, "late", **turn) == []

    assert await hub.pusher.rota() == []
    found = await event(hub, row)
    assert (found.status, found.retry_count, found.processing_started_at) == ("pending", 0, None)


async def test_the_oldest_that_wants_it_has_it_and_the_next_while_that_one_is_paused(hub: Hub, there: Receiver) -> None:
    oldest, _ = await subscribe(hub, "minu_build", "order.*", url=f"{there.url}/first")
    await subscribe(hub, "minu_build", "*.paid", url=f"{there.url}/second")
    async with pushing(hub):
        await ends(hub, await say(hub, "order.paid"), "completed")
        await ends(hub, await say(hub, "cart.paid"), "completed")
        await pause(hub, oldest)
        waits = await say(hub, "order.sent")
        await ends(hub, await say(hub, "order.paid"), "completed")

    assert [request.target for request in there.requests] == ["/hook/first", "/hook/second", "/hook/second"]
    assert (await event(hub, waits)).status == "pending"


async def test_push_and_pull_of_one_service_share_its_events_without_doubles(hub: Hub, there: Receiver) -> None:
    await subscribe(hub, "minu_build", "*", url=there.url)
    rows = [await say(hub, "order.paid") for _ in range(100)]
    pulled: list[UUID] = []

    async def open_ones() -> int:
        return sum([(await event(hub, row)).processed_at is None for row in rows])

    async with pushing(hub, Pusher(hub.db, hub.doorbell, hub.keys, sender(hub.outside), most=5)):
        while await open_ones():
            found = await hub.desk.take(Waiting("minu_build", MINUTE), 3, timedelta())
            pulled += [each.id for each in found]
            async with hub.transaction() as tx:
                await pull.settle(tx, "minu_build", {Receipt(each.id, each.lease): DONE for each in found})

    pushed = [UUID(request.headers["webhook-id"]) for request in there.requests]
    assert pushed
    assert pulled
    assert sorted(pushed + pulled) == sorted(rows)


async def test_a_slow_receiver_leaves_hands_for_the_others(hub: Hub, there: Receiver) -> None:
    gate = asyncio.Event()
    there.mood = slow(gate)
    await subscribe(hub, "minu_build", "order.*", url=there.url)
    rows = [await say(hub, "order.paid") for _ in range(12)]
    pusher = Pusher(hub.db, hub.doorbell, hub.keys, sender(hub.outside), most=3)
    async with receiver() as quick, pushing(hub, pusher, hands=4):
        await subscribe(hub, "minu_keep", "order.*", url=quick.url)
        await there.received(3)
        for _ in range(3):
            await ends(hub, await say(hub, "order.paid", "minu_keep"), "completed")
        assert len(there.requests) == 3

        gate.set()
        for row in rows:
            await ends(hub, row, "completed")


async def test_a_long_queue_is_sent_without_waiting_for_the_clock(hub: Hub, there: Receiver) -> None:
    await subscribe(hub, "minu_build", "order.*", url=there.url)
    rows = [await say(hub, "order.paid") for _ in range(30)]
    pusher = Pusher(hub.db, hub.doorbell, hub.keys, sender(hub.outside), most=4)
    async with pushing(hub, pusher, floor=timedelta(hours=1)):
        for row in rows:
            await ends(hub, row, "completed")

    assert len(there.requests) == 30


async def test_a_disabled_service_gets_nothing(hub: Hub, there: Receiver, web: Any) -> None:
    minu = await enrol(hub, web, "minu_asleep", "write")
    await subscribe(hub, "minu_asleep", "order.*", url=there.url)
    await say(hub, "order.paid", "minu_asleep")
    assert len(await hub.pusher.rota()) == 1

    await minu.let_in(active=False)

    assert await hub.pusher.rota() == []
