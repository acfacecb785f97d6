"""Push scheduling: pauses, the order of subscriptions, and fair use of the concurrency."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from pabal.events.consume.pull import EventPollRequest, Receipt, settle_claimed_events
from pabal.events.push.push_lane import PushLane
from pabal.events.push.pusher import Pusher
from pabal.events.push.shares import PushesInFlight, share_push_slots
from pabal.events.push.targets import ActivePushSubscription, PushSlot, assign_push_slots
from pabal.events.subscriptions import pause_subscription, remove_subscription
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.outside.webhook import post_webhook
from pabal.queue.lane import ClaimRequest
from pabal.queue.outcome import DONE
from pabal.settings import Settings
from support.clusters import open_connection
from support.oauth_client import register_oauth_service
from support.receiver import Receiver, respond_after, run_receiver
from support.subscriptions import (
    ALL_ACCESS,
    TESTER,
    load_event,
    pause,
    publish_test_event,
    resume,
    run_workers,
    subscribe,
    wait_for_status,
)
from support.wait import wait_until

pytestmark = pytest.mark.anyio

MINUTE = timedelta(minutes=1)


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"callback_allow": ["http://127.0.0.1"]})


@pytest.fixture
async def endpoint() -> AsyncGenerator[Receiver]:
    async with run_receiver() as server:
        yield server


async def test_a_pause_survives_a_restart_and_loses_no_event(
    hub: Hub, database_urls: DatabaseUrls, settings: Settings, endpoint: Receiver
) -> None:
    subscription, _ = await subscribe(hub, "minu_build", "order.*", url=endpoint.url)
    await pause(hub, subscription)
    rows = [await publish_test_event(hub, "order.paid") for _ in range(3)]
    async with open_hub(settings, database_urls) as again, run_receiver() as awake:
        await subscribe(again, "minu_keep", "order.*", url=awake.url)
        async with run_workers(again):
            await wait_for_status(again, await publish_test_event(again, "order.paid", "minu_keep"), "completed")
            assert endpoint.requests == []
            assert {(await load_event(again, row)).status for row in rows} == {"pending"}

            await resume(hub, subscription)
            for row in rows:
                assert (await wait_for_status(again, row, "completed")).retry_count == 0

    assert sorted(request.headers["webhook-id"] for request in endpoint.requests) == sorted(map(str, rows))


@pytest.mark.parametrize("action", [pause_subscription, remove_subscription])
async def test_a_subscription_paused_or_removed_before_the_claim_gets_nothing(
    hub: Hub, endpoint: Receiver, action: Any
) -> None:
    """The subscription changes between the worker's schedule and its claim: nothing is sent."""
    subscription, _ = await subscribe(hub, "minu_build", "order.*", url=endpoint.url)
    row = await publish_test_event(hub, "order.paid")
    [scheduled] = await hub.pusher.schedule()
    async with hub.transaction() as tx:
        await action(tx, subscription.id, ALL_ACCESS, TESTER)

    async with hub.autocommit() as tx:
        assert await PushLane().claim(tx, 10, MINUTE, "late", scheduled.claim_filter) == []

    assert await hub.pusher.schedule() == []
    event_now = await load_event(hub, row)
    assert (event_now.status, event_now.retry_count, event_now.processing_started_at) == ("pending", 0, None)


async def test_a_failed_read_of_the_subscription_uses_no_attempt(
    hub: Hub, database_urls: DatabaseUrls, endpoint: Receiver
) -> None:
    await subscribe(hub, "minu_build", "order.*", url=endpoint.url)
    row = await publish_test_event(hub, "order.paid")
    [scheduled] = await hub.pusher.schedule()
    assert database_urls.direct
    async with open_connection(database_urls.direct) as owner:
        await owner.execute("revoke select on pabal.subscriptions from service_role")
        async with hub.autocommit() as tx:
            with pytest.raises(Exception, match="permission denied"):
                await PushLane().claim(tx, 10, MINUTE, "unlucky", scheduled.claim_filter)
        await owner.execute("grant select on pabal.subscriptions to service_role")

    event_now = await load_event(hub, row)
    assert (event_now.status, event_now.retry_count, event_now.processing_started_at) == ("pending", 0, None)
    async with hub.autocommit() as tx:
        [delivery] = await PushLane().claim(tx, 10, MINUTE, "tester", scheduled.claim_filter)
    assert (delivery.id, delivery.attempt) == (row, 1)


async def test_a_locked_subscription_delays_its_own_probe_only(
    hub: Hub, database_urls: DatabaseUrls, endpoint: Receiver
) -> None:
    failing, _ = await subscribe(hub, "minu_build", "order.*", url=endpoint.url)
    await subscribe(hub, "minu_find", "order.*", url=endpoint.url)
    waiting = await publish_test_event(hub, "order.paid")
    claimable = await publish_test_event(hub, "order.paid", "minu_find")
    assert database_urls.direct
    async with open_connection(database_urls.direct) as owner:
        await owner.execute(
            "update pabal.subscriptions set failures = 5, open_until = pabal.now() where id = $1", failing.id
        )
        scheduled = await hub.pusher.schedule()
        assert sorted(claim.claim_filter.is_probe for claim in scheduled) == [False, True]
        requests = [ClaimRequest(claim.claim_filter, 10) for claim in scheduled]
        async with owner.transaction(), asyncio.timeout(10):
            await owner.execute("select from pabal.subscriptions where id = $1 for update", failing.id)
            async with hub.autocommit() as tx:
                claimed = await PushLane().claim_many(tx, requests, 10, MINUTE, "tester")
        assert [delivery.id for delivery in claimed.items] == [claimable]

        async with hub.autocommit() as tx:
            claimed = await PushLane().claim_many(tx, requests, 10, MINUTE, "tester")
        assert [delivery.id for delivery in claimed.items] == [waiting]


async def test_the_oldest_matching_subscription_gets_an_event_unless_it_is_paused(hub: Hub, endpoint: Receiver) -> None:
    oldest, _ = await subscribe(hub, "minu_build", "order.*", url=f"{endpoint.url}/first")
    await subscribe(hub, "minu_build", "*.paid", url=f"{endpoint.url}/second")
    async with run_workers(hub):
        await wait_for_status(hub, await publish_test_event(hub, "order.paid"), "completed")
        await wait_for_status(hub, await publish_test_event(hub, "cart.paid"), "completed")
        await pause(hub, oldest)
        waits = await publish_test_event(hub, "order.sent")
        await wait_for_status(hub, await publish_test_event(hub, "order.paid"), "completed")

    assert [request.target for request in endpoint.requests] == ["/hook/first", "/hook/second", "/hook/second"]
    assert (await load_event(hub, waits)).status == "pending"


def test_slots_go_to_the_oldest_active_subscription_of_each_type() -> None:
    now = datetime(2025, 12, 1, tzinfo=UTC)

    def push_subscription(
        number: int, *event_types: str, service: str = "minu_build", open_for: int | None = None
    ) -> ActivePushSubscription:
        open_until = None if open_for is None else now + timedelta(seconds=open_for)
        return ActivePushSubscription(UUID(int=number), service, event_types, 0, open_until, now)

    slots = assign_push_slots(
        [
            push_subscription(1, "a", "b", open_for=5),
            push_subscription(2, "b", "c", open_for=-5),
            push_subscription(3, "b", "c"),
            push_subscription(4, "c", "d"),
            push_subscription(5, "c"),
            push_subscription(6, "c", service="minu_keep"),
        ]
    )

    assert slots == [
        PushSlot("minu_build", UUID(int=2), ["b", "c"], is_probe=True),
        PushSlot("minu_build", UUID(int=3), ["b", "c"]),
        PushSlot("minu_build", UUID(int=4), ["d"]),
        PushSlot("minu_keep", UUID(int=6), ["c"]),
    ]


async def test_push_and_pull_of_one_service_share_its_events_without_duplicates(hub: Hub, endpoint: Receiver) -> None:
    await subscribe(hub, "minu_build", "*", url=endpoint.url)
    rows = [await publish_test_event(hub, "order.paid") for _ in range(100)]
    pulled: list[UUID] = []

    async def count_open() -> int:
        return sum([(await load_event(hub, row)).processed_at is None for row in rows])

    async with run_workers(hub, Pusher(hub.db, hub.key_ring, partial(post_webhook, hub.http_client), concurrency=20)):
        while await count_open():
            claimed = await hub.event_long_poll.poll(EventPollRequest("minu_build", MINUTE), 3, timedelta())
            pulled += [event_claimed.id for event_claimed in claimed]
            async with hub.transaction() as tx:
                await settle_claimed_events(
                    tx,
                    "minu_build",
                    {Receipt(event_claimed.id, event_claimed.lease): DONE for event_claimed in claimed},
                )

    pushed = [UUID(request.headers["webhook-id"]) for request in endpoint.requests]
    assert pushed
    assert pulled
    assert sorted(pushed + pulled) == sorted(rows)


@pytest.mark.parametrize(
    ("services", "shares"),
    [(["minu_build"] * 4, [1, 1, 2, 5]), (["minu_build", "minu_frame", "minu_keep", "hub"], [2, 3, 3, 5])],
    ids=["one service", "four services"],
)
async def test_four_silent_receivers_do_not_delay_the_others(
    hub: Hub, endpoint: Receiver, services: list[str], shares: list[int]
) -> None:
    """A service uses at most half of twenty slots, and a receiver at most half of its service's."""
    release = asyncio.Event()
    rows: list[UUID] = []
    pusher = Pusher(hub.db, hub.key_ring, partial(post_webhook, hub.http_client), concurrency=20)
    async with AsyncExitStack() as stack:
        slow_receivers = [await stack.enter_async_context(run_receiver()) for _ in services]
        for number, (service, slow_receiver) in enumerate(zip(services, slow_receivers, strict=True)):
            slow_receiver.responder = respond_after(release)
            await subscribe(hub, service, f"slow_{number}.*", url=slow_receiver.url)
            rows += [await publish_test_event(hub, f"slow_{number}.went", service) for _ in range(20)]
        await subscribe(hub, "minu_build", "quick.*", url=endpoint.url)
        await stack.enter_async_context(run_workers(hub, pusher, concurrency=20))
        await wait_until(lambda: sum(len(slow_receiver.requests) for slow_receiver in slow_receivers) == sum(shares))

        quick = [await publish_test_event(hub, "quick.went") for _ in range(30)]
        for row in quick:
            await wait_for_status(hub, row, "completed")
        assert sorted(len(slow_receiver.requests) for slow_receiver in slow_receivers) == shares

        release.set()
        for row in rows:
            await wait_for_status(hub, row, "completed")
    assert len(endpoint.requests) == len(quick)


@pytest.mark.parametrize(
    ("services", "receivers_each", "free"),
    [(0, 0, 100), (1, 1, 75), (4, 1, 33), (10, 1, 7), (17, 1, 0), (1, 2, 63), (1, 40, 50), (1, 100, 50), (3, 40, 13)],
)
def test_slow_receivers_leave_capacity_for_other_services(services: int, receivers_each: int, free: int) -> None:
    slots = [
        PushSlot(f"slow_{service}", UUID(int=1000 * service + number), ["order.paid"])
        for service in range(services)
        for number in range(receivers_each)
    ]
    in_flight = PushesInFlight()
    for _ in range(50):  # however often they are scheduled
        for claim in share_push_slots(slots, in_flight, 100):
            assert claim.max_rows is not None
            in_flight.add(claim.claim_filter.service, claim.claim_filter.subscription_id, claim.max_rows)

    assert 100 - in_flight.total == free
    quick = PushSlot("quick", UUID(int=10**9), ["order.paid"])
    first, *_ = share_push_slots([*slots, quick], in_flight, 100)
    assert (first.claim_filter, first.max_rows) == (quick, max(free // 4, min(1, free)))


async def test_a_long_queue_is_sent_without_waiting_for_a_poll(hub: Hub, endpoint: Receiver) -> None:
    await subscribe(hub, "minu_build", "order.*", url=endpoint.url)
    rows = [await publish_test_event(hub, "order.paid") for _ in range(30)]
    pusher = Pusher(hub.db, hub.key_ring, partial(post_webhook, hub.http_client), concurrency=16)
    async with run_workers(hub, pusher, poll_interval=timedelta(hours=1)):
        for row in rows:
            await wait_for_status(hub, row, "completed")

    assert len(endpoint.requests) == 30


async def test_a_disabled_service_gets_nothing(hub: Hub, endpoint: Receiver, web: Any) -> None:
    minu = await register_oauth_service(hub, web, "minu_asleep", "write")
    await subscribe(hub, "minu_asleep", "order.*", url=endpoint.url)
    await publish_test_event(hub, "order.paid", "minu_asleep")
    assert len(await hub.pusher.schedule()) == 1

    await minu.set_active(active=False)

    assert await hub.pusher.schedule() == []
