"""The retry schedule of pushes: a receiver that is away for a deploy or a night loses nothing."""

from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from pabal.events.consume.lane import LANE
from pabal.events.dead_letters.replay import replay_dead_letter
from pabal.events.push.blocked_keys import end_blocking_events
from pabal.events.push.push_lane import PushLane
from pabal.events.push.pusher import BlockedEvents, Q
from pabal.events.push.retry_schedule import (
    BLOCKED_LIMIT,
    DEFAULT_RETRY_SCHEDULE,
    MAX_RETRY_AFTER,
    limit_blocked_delay,
    scheduled_delay,
    scheduled_retries,
)
from pabal.events.subscriptions import Subscription, SubscriptionPatch, update_subscription
from pabal.hub import Hub
from pabal.queue.outcome import Dead, Retry
from pabal.settings import Settings
from support.clusters import Connection
from support.failed_events import EventQueue
from support.lane_under_test import Travel
from support.receiver import Receiver, respond_with, run_receiver
from support.subscriptions import (
    ALL_ACCESS,
    TESTER,
    load_event,
    pause,
    publish_test_event,
    reload_subscription,
    resume,
    run_workers,
    subscribe,
    wait_for_failures,
    wait_for_status,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"callback_allow": ["http://127.0.0.1"]})


@pytest.fixture
async def endpoint() -> AsyncGenerator[Receiver]:
    async with run_receiver() as server:
        yield server


async def seconds_until_retry(owner: Connection, event: UUID) -> float:
    return await owner.fetchval(
        "select extract(epoch from next_retry_at - updated_at)::float from public.event_queue where id = $1", event
    )


async def patch(hub: Hub, subscription: Subscription, **values: Any) -> Subscription:
    async with hub.transaction() as tx:
        return await update_subscription(tx, subscription.id, ALL_ACCESS, SubscriptionPatch(**values), TESTER)


def test_the_steps_are_hours_long_and_the_last_one_repeats() -> None:
    delays = [scheduled_delay(None, attempt, 0.5) for attempt in range(1, 9)]

    assert delays == [timedelta(seconds=step) for step in (*DEFAULT_RETRY_SCHEDULE, DEFAULT_RETRY_SCHEDULE[-1])]
    assert timedelta(hours=17) < sum(delays[:7], timedelta()) < timedelta(hours=18)
    assert scheduled_delay([100], 1, 0) == timedelta(seconds=90)
    assert scheduled_delay([100], 1, 1) == timedelta(seconds=110)


def test_retry_after_is_obeyed_between_the_step_and_an_hour() -> None:
    def delay(attempt: int, **retry_after: int) -> timedelta:
        return scheduled_delay(None, attempt, 0.5, timedelta(**retry_after))

    assert delay(1, seconds=1) == timedelta(seconds=5)
    assert delay(1, minutes=7) == timedelta(minutes=7)
    assert delay(1, days=2) == MAX_RETRY_AFTER
    assert delay(6, days=2) == timedelta(hours=4)


@pytest.mark.parametrize(("step", "seconds"), [(30, 30), (600, 599), (3600, 3600)])
def test_no_push_comes_before_the_retry_after(step: int, seconds: int) -> None:
    retry_after = timedelta(seconds=seconds)

    assert scheduled_delay([step], 1, 0, retry_after) == retry_after
    assert scheduled_delay([step], 1, 1, retry_after) == timedelta(seconds=step) * 1.1


def test_the_publishers_number_of_retries_counts() -> None:
    assert scheduled_retries(None, 3) == 7
    assert scheduled_retries([1, 2], 3) == 2
    assert scheduled_retries([1, 2], 5) == 5
    assert scheduled_retries(None, 0) == 0


async def test_a_failed_push_gets_the_retries_of_the_schedule_and_a_replay_the_publishers(
    hub: Hub, endpoint: Receiver, owner: Connection, event_queue: EventQueue
) -> None:
    endpoint.responder = respond_with(500)
    await subscribe(hub, "minu_build", "order.*", url=endpoint.url)
    async with run_workers(hub):
        event = await publish_test_event(hub, "order.paid")
        failed = await wait_for_failures(hub, event)

    assert (failed.max_retries, failed.retry_count) == (7, 0)
    assert 4 <= await seconds_until_retry(owner, event) <= 6
    await owner.execute("update public.event_queue set status = 'failed' where id = $1", event)
    async with hub.transaction() as tx:
        await replay_dead_letter(tx, await event_queue.find_dead_letter(event), TESTER)
    row = await event_queue.load_event(event)
    assert (row["max_retries"], row["retries_from"], row["status"]) == (3, None, "pending")


async def test_a_replay_of_a_purged_push_has_the_publishers_retries(
    hub: Hub, endpoint: Receiver, owner: Connection, event_queue: EventQueue
) -> None:
    endpoint.responder = respond_with(500)
    await subscribe(hub, "minu_build", "order.*", url=endpoint.url)
    async with run_workers(hub):
        event = await publish_test_event(hub, "order.paid")
        assert (await wait_for_failures(hub, event)).max_retries == 7
    await owner.execute("update public.event_queue set status = 'failed' where id = $1", event)
    letter = await event_queue.find_dead_letter(event)
    await owner.execute("delete from public.event_queue where id = $1", event)

    async with hub.transaction() as tx:
        replayed = await replay_dead_letter(tx, letter, TESTER)

    assert (await event_queue.load_event(replayed))["max_retries"] == 3


async def test_lost_leases_of_pushes_spend_attempts_of_the_schedule(
    hub: Hub, event_queue: EventQueue, travel: Travel
) -> None:
    await subscribe(hub, "minu_build", "order.*", url="https://receiver.example.org")
    event = await publish_test_event(hub, "order.paid")
    attempts: list[tuple[int, int, int]] = []
    for _ in range(8):
        [slot] = await hub.pusher.schedule()
        async with hub.transaction() as tx:
            [delivery] = await PushLane().claim(tx, 1, timedelta(seconds=30), "killed", slot.claim_filter)
        row = await event_queue.load_event(event)
        attempts.append((delivery.attempt, delivery.max_attempts, row["max_retries"]))
        await travel(timedelta(minutes=1))
        async with hub.transaction() as tx:
            await LANE.revive(tx, 10)

    assert attempts == [(1, 8, 3), *((attempt, 8, 7) for attempt in range(2, 9))]
    row = await event_queue.load_event(event)
    assert (row["status"], row["retries_from"], row["last_error"]) == ("failed", 3, "lease expired")


async def test_a_receiver_that_is_away_for_hours_still_gets_the_event(
    hub: Hub, endpoint: Receiver, travel: Travel
) -> None:
    endpoint.responder = respond_with(503)
    subscription, _ = await subscribe(hub, "minu_build", "order.*", url=endpoint.url)
    async with run_workers(hub):
        event = await publish_test_event(hub, "order.paid")
        for failures, step in enumerate(DEFAULT_RETRY_SCHEDULE[:6], 1):
            await wait_for_failures(hub, event, failures)
            await resume(hub, subscription)  # closes the breaker, which is not what this test is about
            if failures == 6:
                endpoint.responder = respond_with(200)
            await travel(timedelta(seconds=step * 1.2))
        done = await wait_for_status(hub, event, "completed")

    assert (done.retry_count, done.max_retries) == (6, 7)


async def test_a_subscription_has_a_schedule_of_its_own(hub: Hub, endpoint: Receiver, owner: Connection) -> None:
    endpoint.responder = respond_with(500)
    subscription, _ = await subscribe(hub, "minu_build", "order.*", url=endpoint.url)
    changed = await patch(hub, subscription, set_retry_schedule=True, retry_schedule=[100, 200], on_blocked="hold")
    async with run_workers(hub):
        event = await publish_test_event(hub, "order.paid")
        chosen = await publish_test_event(hub, "order.paid", max_retries=1)
        failed = await wait_for_failures(hub, event)
        failed_as_chosen = await wait_for_failures(hub, chosen)

    assert (changed.retry_schedule, changed.on_blocked) == ([100, 200], "hold")
    assert (failed.max_retries, failed_as_chosen.max_retries) == (2, 1)
    assert 89 <= await seconds_until_retry(owner, event) <= 111
    assert (await patch(hub, subscription, set_retry_schedule=True)).retry_schedule is None


async def test_an_open_breaker_spends_no_attempts(
    hub: Hub, endpoint: Receiver, owner: Connection, travel: Travel
) -> None:
    subscription, _ = await subscribe(hub, "minu_build", "order.*", url=endpoint.url)
    await owner.execute(
        "update pabal.subscriptions set failures = 9, open_until = pabal.now() + interval '1 day' where id = $1",
        subscription.id,
    )
    event = await publish_test_event(hub, "order.paid")
    await travel(timedelta(hours=20))

    assert await hub.pusher.schedule() == []
    waiting = await load_event(hub, event)
    assert (waiting.status, waiting.retry_count, waiting.processing_started_at) == ("pending", 0, None)
    assert (await reload_subscription(hub, subscription)).open_until is not None


def test_a_blocking_event_has_ten_minutes() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    hour = timedelta(hours=1)

    assert limit_blocked_delay(timedelta(seconds=5), now, now) == timedelta(seconds=5)
    assert limit_blocked_delay(hour, now - timedelta(minutes=4), now) == timedelta(minutes=6)
    assert limit_blocked_delay(hour, now - timedelta(minutes=10), now) is None
    half_an_hour = timedelta(minutes=30)
    assert limit_blocked_delay(half_an_hour, now, now, half_an_hour) == half_an_hour
    assert limit_blocked_delay(hour, now, now, timedelta(seconds=30)) == timedelta(minutes=10)


@pytest.mark.parametrize(("on_blocked", "status"), [("dead_letter", "failed"), ("hold", "pending")])
async def test_a_failing_head_frees_its_ordering_key_after_ten_minutes(
    hub: Hub, endpoint: Receiver, event_queue: EventQueue, travel: Travel, on_blocked: Any, status: str
) -> None:
    endpoint.responder = respond_with(500)
    subscription, _ = await subscribe(hub, "minu_build", "order.*", url=endpoint.url)
    await patch(hub, subscription, on_blocked=on_blocked, set_retry_schedule=True, retry_schedule=[3600] * 3)
    async with run_workers(hub):
        head = await publish_test_event(hub, "order.paid", ordering_key="cart-1")
        await wait_for_failures(hub, head)
    await travel(timedelta(minutes=9))
    behind = await publish_test_event(hub, "order.paid", ordering_key="cart-1")
    async with hub.transaction() as tx:
        assert await end_blocking_events(tx, 100) == 0
    await travel(timedelta(minutes=2))
    async with hub.transaction() as tx:
        await end_blocking_events(tx, 100)

    assert (await load_event(hub, head)).status == status
    assert bool(await event_queue.find_dead_letter(head)) == (status == "failed")
    claimed = [event.id for event in await event_queue.claim()]
    assert claimed == ([behind] if status == "failed" else [])


@pytest.mark.parametrize("attempts", [20, 21, 22, 40])
async def test_the_ten_minutes_hold_for_any_number_of_attempts(
    hub: Hub, event_queue: EventQueue, travel: Travel, attempts: int
) -> None:
    await subscribe(hub, "minu_build", "order.*", url="https://receiver.example.org")
    head = await event_queue.publish(ordering_key="cart-1", max_retries=100)
    await event_queue.publish(ordering_key="cart-1")
    began = []
    for attempt in range(1, attempts + 1):
        if attempt == attempts:
            await travel(BLOCKED_LIMIT)
        [claimed] = await event_queue.claim()
        began.append((await event_queue.load_event(head))["processing_started_at"])
        async with hub.autocommit() as tx:
            blocked = await tx.one(
                BlockedEvents, Q.find_blocked_events, id=head, lease=claimed.lease, tries=attempt - 1
            )
        assert blocked.first_attempt_at == began[0]
        await event_queue.settle(claimed, Retry("closed", timedelta(hours=1) if attempt == attempts else timedelta()))
    async with hub.transaction() as tx:
        assert await end_blocking_events(tx, 100) == 1

    assert (await load_event(hub, head)).status == "failed"


async def test_a_replayed_head_has_ten_minutes_again(hub: Hub, event_queue: EventQueue, travel: Travel) -> None:
    await subscribe(hub, "minu_build", "order.*", url="https://receiver.example.org")
    head = await event_queue.publish(ordering_key="cart-1", max_retries=100)
    await event_queue.publish(ordering_key="cart-1")
    for _ in range(30):
        [claimed] = await event_queue.claim()
        await event_queue.settle(claimed, Retry("closed", timedelta()))
    [claimed] = await event_queue.claim()
    await event_queue.settle(claimed, Dead("closed"))
    await travel(timedelta(hours=1))
    async with hub.transaction() as tx:
        await replay_dead_letter(tx, await event_queue.find_dead_letter(head), TESTER)
    [claimed] = [event for event in await event_queue.claim() if event.id == head]
    await event_queue.settle(claimed, Retry("closed", timedelta(hours=1)))

    async with hub.transaction() as tx:
        assert await end_blocking_events(tx, 100) == 0


async def test_a_head_that_may_not_be_sent_in_its_ten_minutes_is_not_sent_again(
    hub: Hub, endpoint: Receiver, owner: Connection, travel: Travel
) -> None:
    endpoint.responder = respond_with(503, headers={"retry-after": "1800"})
    await subscribe(hub, "minu_build", "order.*", url=endpoint.url)
    async with run_workers(hub):
        head = await publish_test_event(hub, "order.paid", ordering_key="cart-1")
        await publish_test_event(hub, "order.paid", ordering_key="cart-1")
        await wait_for_failures(hub, head)
        assert 1799 <= await seconds_until_retry(owner, head) <= 1801
    await travel(timedelta(minutes=11))
    async with hub.transaction() as tx:
        assert await end_blocking_events(tx, 100) == 1

    assert (await load_event(hub, head)).status == "failed"


async def test_the_subscription_that_gets_an_event_decides_whether_it_may_block(
    hub: Hub, endpoint: Receiver, travel: Travel
) -> None:
    endpoint.responder = respond_with(500)
    oldest, _ = await subscribe(hub, "minu_build", "order.*", url=endpoint.url)
    await patch(hub, oldest, on_blocked="hold", set_retry_schedule=True, retry_schedule=[3600] * 3)
    await subscribe(hub, "minu_build", "*", url=endpoint.url)
    async with run_workers(hub):
        head = await publish_test_event(hub, "order.paid", ordering_key="cart-1")
        await publish_test_event(hub, "order.paid", ordering_key="cart-1")
        await wait_for_failures(hub, head)
    await travel(timedelta(minutes=11))

    async with hub.transaction() as tx:
        assert await end_blocking_events(tx, 100) == 0
    await pause(hub, oldest)
    async with hub.transaction() as tx:
        assert await end_blocking_events(tx, 100) == 1
    assert (await load_event(hub, head)).status == "failed"


async def test_a_head_that_fails_again_after_ten_minutes_becomes_a_dead_letter(
    hub: Hub, endpoint: Receiver, travel: Travel
) -> None:
    endpoint.responder = respond_with(500)
    subscription, _ = await subscribe(hub, "minu_build", "order.*", url=endpoint.url)
    await patch(hub, subscription, set_retry_schedule=True, retry_schedule=[3600] * 3)
    async with run_workers(hub):
        head = await publish_test_event(hub, "order.paid", ordering_key="cart-1")
        await publish_test_event(hub, "order.paid", ordering_key="cart-1")
        await wait_for_failures(hub, head)
        await travel(timedelta(minutes=11))
        dead = await wait_for_status(hub, head, "failed")

    assert "held back later events" in (dead.last_error or "")
