"""A receiver that fails is left in peace, asked once, and taken up again when it answers."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pabal.events.circuit_breaker import (
    CLOSED_BREAKER,
    FAILURE_THRESHOLD,
    FIRST_OPEN_DURATION,
    MAX_OPEN_DURATION,
    BreakerState,
    CircuitBreaker,
    open_duration,
)
from pabal.events.push import PushDelivery, PushLane
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.settings import Settings
from support.clusters import connected
from support.lane_under_test import Travel
from support.receiver import Receiver, answers, receiver, slow
from support.subscriptions import ends, event, fails, pushing, say, seen, subscribe
from support.wait import until

NOW = datetime(2025, 11, 24, 10, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
LATER = answers(503, headers={"retry-after": "3600"})


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"callback_allow": ["http://127.0.0.1"]})


@pytest.fixture
async def there() -> AsyncGenerator[Receiver]:
    async with receiver() as one:
        yield one


def after(failures: int, *, probing: bool = False) -> CircuitBreaker:
    breaker = CLOSED_BREAKER
    for _ in range(failures):
        breaker = breaker.after_failure(NOW, is_probe=probing)
    return breaker


def test_it_opens_with_the_fifth_failure() -> None:
    assert after(FAILURE_THRESHOLD - 1) == CircuitBreaker(FAILURE_THRESHOLD - 1, None)
    assert after(FAILURE_THRESHOLD) == CircuitBreaker(FAILURE_THRESHOLD, NOW + FIRST_OPEN_DURATION)


def test_what_was_sent_before_it_opened_does_not_keep_it_open_longer() -> None:
    assert after(FAILURE_THRESHOLD + 20) == after(FAILURE_THRESHOLD)


def test_each_failed_probe_doubles_the_rest_up_to_five_minutes() -> None:
    rests = [after(FAILURE_THRESHOLD + failed, probing=True).open_until for failed in range(8)]

    assert rests == [NOW + timedelta(seconds=each) for each in (10, 20, 40, 80, 160, 300, 300, 300)]


def test_how_it_stands() -> None:
    opened = after(FAILURE_THRESHOLD)

    assert CLOSED_BREAKER.state(NOW) is BreakerState.CLOSED
    assert opened.state(NOW + FIRST_OPEN_DURATION - timedelta.resolution) is BreakerState.OPEN
    assert opened.state(NOW + FIRST_OPEN_DURATION) is BreakerState.HALF_OPEN


@given(st.integers(min_value=0, max_value=10**9))
def test_a_rest_is_within_reason_and_never_shorter_than_the_one_before(failures: int) -> None:
    assert FIRST_OPEN_DURATION <= open_duration(failures) <= open_duration(failures + 1) <= MAX_OPEN_DURATION


async def broken(hub: Hub, there: Receiver) -> None:
    """Fail as often as it takes, with events that do not come back soon."""
    there.mood = LATER
    for row in [await say(hub, "order.paid") for _ in range(FAILURE_THRESHOLD)]:
        await fails(hub, row)


@pytest.mark.anyio
async def test_while_it_is_open_no_attempt_is_spent(hub: Hub, there: Receiver) -> None:
    subscription, _ = await subscribe(hub, "minu_build", "order.*", url=there.url)
    async with pushing(hub):
        await broken(hub, there)
        found = await seen(hub, subscription)
        late = await say(hub, "order.late")
        assert await hub.pusher.schedule() == []

    assert found.failures == FAILURE_THRESHOLD
    assert found.open_until is not None
    assert timedelta(seconds=9) < found.open_until - found.updated_at <= FIRST_OPEN_DURATION
    assert len(there.requests) == FAILURE_THRESHOLD
    waiting = await event(hub, late)
    assert (waiting.status, waiting.retry_count, waiting.processing_started_at) == ("pending", 0, None)


@pytest.mark.anyio
async def test_one_probe_goes_out_from_all_processes_and_its_success_brings_the_rest(
    hub: Hub, database_urls: DatabaseUrls, settings: Settings, there: Receiver, travel: Travel
) -> None:
    subscription, _ = await subscribe(hub, "minu_build", "order.*", url=there.url)
    gate = asyncio.Event()
    async with AsyncExitStack() as stack:
        other = await stack.enter_async_context(open_hub(settings, database_urls))
        for each in (hub, other):
            await stack.enter_async_context(pushing(each))
        await broken(hub, there)
        rows = [await say(hub, "order.late") for _ in range(20)]
        there.mood = slow(gate)
        await travel(FIRST_OPEN_DURATION)

        await there.received(FAILURE_THRESHOLD + 1)
        for each in (hub, other):
            assert await each.pusher.schedule() == []
        assert len(there.requests) == FAILURE_THRESHOLD + 1
        gate.set()
        for row in rows:
            await ends(hub, row, "completed")

    found = await seen(hub, subscription)
    assert (found.failures, found.open_until) == (0, None)


@pytest.mark.anyio
async def test_those_who_look_at_once_have_one_probe_between_them(
    hub: Hub, database_urls: DatabaseUrls, there: Receiver, travel: Travel
) -> None:
    await subscribe(hub, "minu_build", "order.*", url=there.url)
    async with pushing(hub):
        await broken(hub, there)
    for _ in range(FAILURE_THRESHOLD):
        await say(hub, "order.late")
    await travel(FIRST_OPEN_DURATION)
    [turn] = await hub.pusher.schedule()

    async def claim(name: str) -> list[PushDelivery]:
        async with hub.autocommit() as tx:
            return await PushLane().claim(tx, 10, MINUTE, name, turn.claim_filter)

    found = await asyncio.gather(*(claim(f"worker {number}") for number in range(4)))

    [[parcel]] = [each for each in found if each]
    assert parcel.target.is_probe
    assert await hub.pusher.schedule() == []
    async with connected(database_urls.main) as conn:
        [held] = await conn.fetch("select id from public.event_queue where status = 'processing'")
        attempts = await conn.fetch("select retry_count from public.event_queue where status = 'pending'")
    assert held["id"] == parcel.id
    assert {each["retry_count"] for each in attempts} == {0}


@pytest.mark.anyio
async def test_a_probe_that_fails_doubles_the_rest_and_one_that_is_lost_is_made_again(
    hub: Hub, there: Receiver, travel: Travel
) -> None:
    subscription, _ = await subscribe(hub, "minu_build", "order.*", url=there.url, within=1)
    async with pushing(hub):
        await broken(hub, there)
        for _ in range(3):
            await say(hub, "order.late")
        await travel(FIRST_OPEN_DURATION)

        async def probed() -> bool:
            return (await seen(hub, subscription)).failures == FAILURE_THRESHOLD + 1

        await until(probed)
    found = await seen(hub, subscription)
    assert found.open_until is not None
    assert timedelta(seconds=19) < found.open_until - found.updated_at <= timedelta(seconds=20)
    assert len(there.requests) == FAILURE_THRESHOLD + 1

    await travel(2 * FIRST_OPEN_DURATION)
    [turn] = await hub.pusher.schedule()
    async with hub.autocommit() as tx:
        assert await PushLane().claim(tx, 1, MINUTE, "about to die", turn.claim_filter)
    assert await hub.pusher.schedule() == []
    await travel(MINUTE)
    assert len(await hub.pusher.schedule()) == 1


@pytest.mark.anyio
async def test_a_failure_now_and_then_is_forgiven_and_success_writes_nothing(
    hub: Hub, database_urls: DatabaseUrls, there: Receiver
) -> None:
    subscription, _ = await subscribe(hub, "minu_build", "order.*", url=there.url)

    async def version() -> tuple[str, str]:
        """Whoever wrote the row, and whoever locked it."""
        async with connected(database_urls.main) as conn:
            [found] = await conn.fetch("select xmin::text, xmax::text from pabal.subscriptions")
        return tuple(found)

    before = await version()
    async with pushing(hub):
        for _ in range(3):
            await ends(hub, await say(hub, "order.paid"), "completed")
        assert await version() == before

        for _ in range(FAILURE_THRESHOLD):
            there.script.append(LATER)
            row = await say(hub, "order.paid")
            await fails(hub, row)
            assert (await seen(hub, subscription)).failures == 1
            await ends(hub, await say(hub, "order.paid"), "completed")

    assert (await seen(hub, subscription)).failures == 0
