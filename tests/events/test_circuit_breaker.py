"""Circuit breaker of push subscriptions: it opens after failures, sends one probe, and closes on success."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pabal.events.push.circuit_breaker import (
    CLOSED_BREAKER,
    FAILURE_THRESHOLD,
    FIRST_OPEN_DURATION,
    MAX_OPEN_DURATION,
    BreakerState,
    CircuitBreaker,
    open_duration,
)
from pabal.events.push.push_lane import PushDelivery, PushLane
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.settings import Settings
from support.clusters import open_connection
from support.lane_under_test import Travel
from support.receiver import Receiver, respond_after, respond_with, run_receiver
from support.subscriptions import (
    load_event,
    publish_test_event,
    reload_subscription,
    run_workers,
    subscribe,
    wait_for_failures,
    wait_for_status,
)
from support.wait import wait_until

NOW = datetime(2025, 11, 24, 10, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
RETRY_IN_AN_HOUR = respond_with(503, headers={"retry-after": "3600"})


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"callback_allow": ["http://127.0.0.1"]})


@pytest.fixture
async def endpoint() -> AsyncGenerator[Receiver]:
    async with run_receiver() as server:
        yield server


def breaker_after(failures: int, *, probing: bool = False) -> CircuitBreaker:
    breaker = CLOSED_BREAKER
    for _ in range(failures):
        breaker = breaker.after_failure(NOW, is_probe=probing)
    return breaker


def test_the_breaker_opens_at_the_failure_threshold() -> None:
    assert breaker_after(FAILURE_THRESHOLD - 1) == CircuitBreaker(FAILURE_THRESHOLD - 1, None)
    assert breaker_after(FAILURE_THRESHOLD) == CircuitBreaker(FAILURE_THRESHOLD, NOW + FIRST_OPEN_DURATION)


def test_failures_of_earlier_requests_do_not_extend_the_open_time() -> None:
    assert breaker_after(FAILURE_THRESHOLD + 20) == breaker_after(FAILURE_THRESHOLD)


def test_each_failed_probe_doubles_the_open_time_up_to_five_minutes() -> None:
    open_until = [breaker_after(FAILURE_THRESHOLD + probes, probing=True).open_until for probes in range(8)]

    assert open_until == [NOW + timedelta(seconds=seconds) for seconds in (10, 20, 40, 80, 160, 300, 300, 300)]


def test_an_open_breaker_becomes_half_open() -> None:
    breaker = breaker_after(FAILURE_THRESHOLD)

    assert CLOSED_BREAKER.state(NOW) is BreakerState.CLOSED
    assert breaker.state(NOW + FIRST_OPEN_DURATION - timedelta.resolution) is BreakerState.OPEN
    assert breaker.state(NOW + FIRST_OPEN_DURATION) is BreakerState.HALF_OPEN


@given(st.integers(min_value=0, max_value=10**9))
def test_the_open_time_is_bounded_and_never_shrinks(failures: int) -> None:
    assert FIRST_OPEN_DURATION <= open_duration(failures) <= open_duration(failures + 1) <= MAX_OPEN_DURATION


async def open_breaker(hub: Hub, endpoint: Receiver) -> None:
    """Open the breaker with failures that are not retried soon."""
    endpoint.responder = RETRY_IN_AN_HOUR
    for row in [await publish_test_event(hub, "order.paid") for _ in range(FAILURE_THRESHOLD)]:
        await wait_for_failures(hub, row)


@pytest.mark.anyio
async def test_an_open_breaker_uses_no_attempts(hub: Hub, endpoint: Receiver) -> None:
    subscription, _ = await subscribe(hub, "minu_build", "order.*", url=endpoint.url)
    async with run_workers(hub):
        await open_breaker(hub, endpoint)
        subscription_now = await reload_subscription(hub, subscription)
        late_event = await publish_test_event(hub, "order.late")
        assert await hub.pusher.schedule() == []

    assert subscription_now.failures == FAILURE_THRESHOLD
    assert subscription_now.open_until is not None
    assert timedelta(seconds=9) < subscription_now.open_until - subscription_now.updated_at <= FIRST_OPEN_DURATION
    assert len(endpoint.requests) == FAILURE_THRESHOLD
    waiting_event = await load_event(hub, late_event)
    assert (waiting_event.status, waiting_event.retry_count, waiting_event.processing_started_at) == (
        "pending",
        0,
        None,
    )


@pytest.mark.anyio
async def test_all_processes_send_one_probe_and_its_success_closes_the_breaker(
    hub: Hub, database_urls: DatabaseUrls, settings: Settings, endpoint: Receiver, travel: Travel
) -> None:
    subscription, _ = await subscribe(hub, "minu_build", "order.*", url=endpoint.url)
    release = asyncio.Event()
    async with AsyncExitStack() as stack:
        other = await stack.enter_async_context(open_hub(settings, database_urls))
        for process in (hub, other):
            await stack.enter_async_context(run_workers(process))
        await open_breaker(hub, endpoint)
        rows = [await publish_test_event(hub, "order.late") for _ in range(20)]
        endpoint.responder = respond_after(release)
        await travel(FIRST_OPEN_DURATION)

        await endpoint.wait_for_requests(FAILURE_THRESHOLD + 1)
        for process in (hub, other):
            assert await process.pusher.schedule() == []
        assert len(endpoint.requests) == FAILURE_THRESHOLD + 1
        release.set()
        for row in rows:
            await wait_for_status(hub, row, "completed")

    subscription_now = await reload_subscription(hub, subscription)
    assert (subscription_now.failures, subscription_now.open_until) == (0, None)


@pytest.mark.anyio
async def test_concurrent_claims_get_one_probe(
    hub: Hub, database_urls: DatabaseUrls, endpoint: Receiver, travel: Travel
) -> None:
    await subscribe(hub, "minu_build", "order.*", url=endpoint.url)
    async with run_workers(hub):
        await open_breaker(hub, endpoint)
    for _ in range(FAILURE_THRESHOLD):
        await publish_test_event(hub, "order.late")
    await travel(FIRST_OPEN_DURATION)
    [slot] = await hub.pusher.schedule()

    async def claim(name: str) -> list[PushDelivery]:
        async with hub.autocommit() as tx:
            return await PushLane().claim(tx, 10, MINUTE, name, slot.claim_filter)

    claims = await asyncio.gather(*(claim(f"worker {number}") for number in range(4)))

    [[probe]] = [claim_result for claim_result in claims if claim_result]
    assert probe.target.is_probe
    assert await hub.pusher.schedule() == []
    async with open_connection(database_urls.main) as conn:
        [held_row] = await conn.fetch("select id from public.event_queue where status = 'processing'")
        attempts = await conn.fetch("select retry_count from public.event_queue where status = 'pending'")
    assert held_row["id"] == probe.id
    assert {claim_result["retry_count"] for claim_result in attempts} == {0}


@pytest.mark.anyio
async def test_a_failed_probe_doubles_the_open_time_and_a_lost_one_is_repeated(
    hub: Hub, endpoint: Receiver, travel: Travel
) -> None:
    subscription, _ = await subscribe(hub, "minu_build", "order.*", url=endpoint.url, within=1)
    async with run_workers(hub):
        await open_breaker(hub, endpoint)
        for _ in range(3):
            await publish_test_event(hub, "order.late")
        await travel(FIRST_OPEN_DURATION)

        async def has_probed() -> bool:
            return (await reload_subscription(hub, subscription)).failures == FAILURE_THRESHOLD + 1

        await wait_until(has_probed)
    subscription_now = await reload_subscription(hub, subscription)
    assert subscription_now.open_until is not None
    assert timedelta(seconds=19) < subscription_now.open_until - subscription_now.updated_at <= timedelta(seconds=20)
    assert len(endpoint.requests) == FAILURE_THRESHOLD + 1

    await travel(2 * FIRST_OPEN_DURATION)
    [slot] = await hub.pusher.schedule()
    async with hub.autocommit() as tx:
        assert await PushLane().claim(tx, 1, MINUTE, "about to die", slot.claim_filter)
    assert await hub.pusher.schedule() == []
    await travel(MINUTE)
    assert len(await hub.pusher.schedule()) == 1


@pytest.mark.anyio
async def test_a_success_resets_failures_and_writes_nothing_otherwise(
    hub: Hub, database_urls: DatabaseUrls, endpoint: Receiver
) -> None:
    subscription, _ = await subscribe(hub, "minu_build", "order.*", url=endpoint.url)

    async def version() -> tuple[str, str]:
        """The transactions that wrote and locked the row."""
        async with open_connection(database_urls.main) as conn:
            [row_version] = await conn.fetch("select xmin::text, xmax::text from pabal.subscriptions")
        return tuple(row_version)

    before = await version()
    async with run_workers(hub):
        for _ in range(3):
            await wait_for_status(hub, await publish_test_event(hub, "order.paid"), "completed")
        assert await version() == before

        for _ in range(FAILURE_THRESHOLD):
            endpoint.script.append(RETRY_IN_AN_HOUR)
            row = await publish_test_event(hub, "order.paid")
            await wait_for_failures(hub, row)
            assert (await reload_subscription(hub, subscription)).failures == 1
            await wait_for_status(hub, await publish_test_event(hub, "order.paid"), "completed")

    assert (await reload_subscription(hub, subscription)).failures == 0
