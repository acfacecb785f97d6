"""Whose turn it is: who is paused, who comes first, and that nobody holds up the others."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from pabal.events.pull import EventPollRequest, Receipt, settle_claimed_events
from pabal.events.push import Pusher, PushLane, push_capacity
from pabal.events.push_targets import ActivePushSubscription, PushSlot, assign_push_slots
from pabal.events.subscriptions import pause_subscription, remove_subscription
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.outside.webhook import post_webhook
from pabal.queue.outcome import DONE
from pabal.settings import Settings
from support.clusters import connected
from support.oauth_client import enrol
from support.receiver import Receiver, receiver, slow
from support.subscriptions import EVERYBODY, TESTER, ends, event, pause, pushing, resume, say, subscribe
from support.wait import until

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
    hub: Hub, database_urls: DatabaseUrls, settings: Settings, there: Receiver
) -> None:
    subscription, _ = await subscribe(hub, "minu_build", "order.*", url=there.url)
    await pause(hub, subscription)
    rows = [await say(hub, "order.paid") for _ in range(3)]
    async with open_hub(settings, database_urls) as again, receiver() as awake:
        await subscribe(again, "minu_keep", "order.*", url=awake.url)
        async with pushing(again):
            await ends(again, await say(again, "order.paid", "minu_keep"), "completed")
            assert there.requests == []
            assert {(await event(again, row)).status for row in rows} == {"pending"}

            await resume(hub, subscription)
            for row in rows:
                assert (await ends(again, row, "completed")).retry_count == 0

    assert sorted(request.headers["webhook-id"] for request in there.requests) == sorted(map(str, rows))


@pytest.mark.parametrize("deed", [pause_subscription, remove_subscription])
async def test_what_was_paused_or_removed_after_the_look_gets_nothing(hub: Hub, there: Receiver, deed: Any) -> None:
    """Between a worker's look and its claim somebody is answered: from then on nothing is sent."""
    subscription, _ = await subscribe(hub, "minu_build", "order.*", url=there.url)
    row = await say(hub, "order.paid")
    [turn] = await hub.pusher.schedule()
    async with hub.transaction() as tx:
        await deed(tx, subscription.id, EVERYBODY, TESTER)

    async with hub.autocommit() as tx:
        assert await PushLane().claim(tx, 10, MINUTE, "late", turn.claim_filter) == []

    assert await hub.pusher.schedule() == []
    found = await event(hub, row)
    assert (found.status, found.retry_count, found.processing_started_at) == ("pending", 0, None)


async def test_an_address_that_cannot_be_asked_for_costs_no_attempt(
    hub: Hub, database_urls: DatabaseUrls, there: Receiver
) -> None:
    await subscribe(hub, "minu_build", "order.*", url=there.url)
    row = await say(hub, "order.paid")
    [turn] = await hub.pusher.schedule()
    assert database_urls.direct
    async with connected(database_urls.direct) as owner:
        await owner.execute("revoke select on pabal.subscriptions from service_role")
        async with hub.autocommit() as tx:
            with pytest.raises(Exception, match="permission denied"):
                await PushLane().claim(tx, 10, MINUTE, "unlucky", turn.claim_filter)
        await owner.execute("grant select on pabal.subscriptions to service_role")

    found = await event(hub, row)
    assert (found.status, found.retry_count, found.processing_started_at) == ("pending", 0, None)
    async with hub.autocommit() as tx:
        [parcel] = await PushLane().claim(tx, 10, MINUTE, "tester", turn.claim_filter)
    assert (parcel.id, parcel.attempt) == (row, 1)


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


def test_a_type_is_the_oldests_who_stands_and_anybody_is_asked_with_what_they_want() -> None:
    now = datetime(2025, 12, 1, tzinfo=UTC)

    def live(
        number: int, *event_types: str, service: str = "minu_build", open_for: int | None = None
    ) -> ActivePushSubscription:
        until_then = None if open_for is None else now + timedelta(seconds=open_for)
        return ActivePushSubscription(UUID(int=number), service, event_types, 0, until_then, now)

    found = assign_push_slots(
        [
            live(1, "a", "b", open_for=5),
            live(2, "b", "c", open_for=-5),
            live(3, "b", "c"),
            live(4, "c", "d"),
            live(5, "c"),
            live(6, "c", service="minu_keep"),
        ]
    )

    assert found == [
        PushSlot("minu_build", UUID(int=2), ["b", "c"], is_probe=True),
        PushSlot("minu_build", UUID(int=3), ["b", "c"]),
        PushSlot("minu_build", UUID(int=4), ["d"]),
        PushSlot("minu_keep", UUID(int=6), ["c"]),
    ]


async def test_push_and_pull_of_one_service_share_its_events_without_duplicates(hub: Hub, there: Receiver) -> None:
    await subscribe(hub, "minu_build", "*", url=there.url)
    rows = [await say(hub, "order.paid") for _ in range(100)]
    pulled: list[UUID] = []

    async def open_ones() -> int:
        return sum([(await event(hub, row)).processed_at is None for row in rows])

    async with pushing(hub, Pusher(hub.db, hub.key_ring, partial(post_webhook, hub.http_client), concurrency=20)):
        while await open_ones():
            found = await hub.event_long_poll.poll(EventPollRequest("minu_build", MINUTE), 3, timedelta())
            pulled += [each.id for each in found]
            async with hub.transaction() as tx:
                await settle_claimed_events(tx, "minu_build", {Receipt(each.id, each.lease): DONE for each in found})

    pushed = [UUID(request.headers["webhook-id"]) for request in there.requests]
    assert pushed
    assert pulled
    assert sorted(pushed + pulled) == sorted(rows)


@pytest.mark.parametrize("services", [["minu_build"] * 4, ["minu_build", "minu_frame", "minu_keep", "hub"]])
async def test_four_silent_receivers_do_not_delay_the_others(hub: Hub, there: Receiver, services: list[str]) -> None:
    """Each has a third of what stays free, whether of one service or of four: 5, 3, 3 and 2 of twenty hands."""
    gate = asyncio.Event()
    rows: list[UUID] = []
    pusher = Pusher(hub.db, hub.key_ring, partial(post_webhook, hub.http_client), concurrency=20)
    async with AsyncExitStack() as stack:
        slow_ones = [await stack.enter_async_context(receiver()) for _ in services]
        for number, (service, one) in enumerate(zip(services, slow_ones, strict=True)):
            one.mood = slow(gate)
            await subscribe(hub, service, f"slow_{number}.*", url=one.url)
            rows += [await say(hub, f"slow_{number}.went", service) for _ in range(20)]
        await subscribe(hub, "minu_build", "quick.*", url=there.url)
        await stack.enter_async_context(pushing(hub, pusher, concurrency=20))
        await until(lambda: sum(len(one.requests) for one in slow_ones) == 13)

        quick = [await say(hub, "quick.went") for _ in range(30)]
        for row in quick:
            await ends(hub, row, "completed")
        assert sorted(len(one.requests) for one in slow_ones) == [2, 3, 3, 5]

        gate.set()
        for row in rows:
            await ends(hub, row, "completed")
    assert len(there.requests) == len(quick)


@pytest.mark.parametrize(("slow_ones", "left"), [(0, 100), (1, 75), (4, 33), (10, 7), (17, 0)])
def test_of_a_hundred_hands_so_many_are_left_by_those_who_never_answer(slow_ones: int, left: int) -> None:
    taken = [0] * slow_ones
    for number in 50 * [*range(slow_ones)]:  # however often they are asked
        taken[number] += push_capacity(100 - sum(taken), taken[number])

    assert 100 - sum(taken) == left
    assert push_capacity(left, in_flight=0) == left // 4 or left < 4


async def test_a_long_queue_is_sent_without_waiting_for_a_poll(hub: Hub, there: Receiver) -> None:
    await subscribe(hub, "minu_build", "order.*", url=there.url)
    rows = [await say(hub, "order.paid") for _ in range(30)]
    pusher = Pusher(hub.db, hub.key_ring, partial(post_webhook, hub.http_client), concurrency=16)
    async with pushing(hub, pusher, poll_interval=timedelta(hours=1)):
        for row in rows:
            await ends(hub, row, "completed")

    assert len(there.requests) == 30


async def test_a_disabled_service_gets_nothing(hub: Hub, there: Receiver, web: Any) -> None:
    minu = await enrol(hub, web, "minu_asleep", "write")
    await subscribe(hub, "minu_asleep", "order.*", url=there.url)
    await say(hub, "order.paid", "minu_asleep")
    assert len(await hub.pusher.schedule()) == 1

    await minu.let_in(active=False)

    assert await hub.pusher.schedule() == []
