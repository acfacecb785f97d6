import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as trying
from hypothesis import strategies as st

from pabal.core.errors import RateLimited
from pabal.core.ids import new_id
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.limits import RateLimit, consume_rate_limit, purge_rate_limits
from pabal.settings import Settings
from support.clusters import open_connection

pytestmark = pytest.mark.anyio

MINUTE = timedelta(minutes=1)


async def is_allowed(hub: Hub, limit: RateLimit, key: str, count: int = 1) -> bool:
    try:
        async with hub.autocommit() as tx:
            await consume_rate_limit(tx, limit, key, count)
    except RateLimited:
        return False
    return True


@pytest.mark.parametrize("count", [1, 3, 7, 10])
async def test_exactly_the_limit_passes(hub: Hub, count: int) -> None:
    limit = RateLimit("calls", count, timedelta(hours=1))

    assert [await is_allowed(hub, limit, "a") for _ in range(count + 2)] == [True] * count + [False] * 2


async def test_several_calls_at_once_pass_all_or_none(hub: Hub, travel: Callable[[timedelta], Awaitable[None]]) -> None:
    limit = RateLimit("calls", 6, MINUTE)
    async with hub.autocommit() as tx:
        await consume_rate_limit(tx, limit, "a", 4)
        with pytest.raises(RateLimited) as error:
            await consume_rate_limit(tx, limit, "a", 3)
        await consume_rate_limit(tx, limit, "a", 2)

    assert timedelta(seconds=5) < error.value.retry_after <= timedelta(seconds=10)
    await travel(timedelta(seconds=30))
    assert await is_allowed(hub, limit, "a", 3)


async def test_more_calls_than_the_limit_count_as_the_limit(hub: Hub) -> None:
    limit = RateLimit("calls", 6, MINUTE)

    assert [await is_allowed(hub, limit, "a", count) for count in (100, 1)] == [True, False]


@pytest.mark.parametrize("count", [1, 7])
async def test_exactly_the_limit_passes_with_concurrent_processes(
    database_urls: DatabaseUrls, settings: Settings, count: int
) -> None:
    limit = RateLimit("calls", count, timedelta(hours=1))
    async with AsyncExitStack() as stack:
        hubs = [await stack.enter_async_context(open_hub(settings, database_urls)) for _ in range(2)]

        for key in ("first", "second", "third"):
            results = await asyncio.gather(*(is_allowed(hubs[number % 2], limit, key) for number in range(40)))

            assert sum(results) == count


async def test_a_refused_call_gets_a_retry_after_and_then_passes(
    hub: Hub, travel: Callable[[timedelta], Awaitable[None]]
) -> None:
    limit = RateLimit("calls", 2, MINUTE)
    assert await is_allowed(hub, limit, "a")
    assert await is_allowed(hub, limit, "a")

    with pytest.raises(RateLimited) as error:
        async with hub.autocommit() as tx:
            await consume_rate_limit(tx, limit, "a")

    assert timedelta(seconds=25) < error.value.retry_after <= timedelta(seconds=30)
    assert "too many calls" in str(error.value)
    await travel(error.value.retry_after)
    assert await is_allowed(hub, limit, "a")
    assert not await is_allowed(hub, limit, "a")


async def test_keys_and_limits_are_independent(hub: Hub) -> None:
    calls, messages = RateLimit("calls", 1, MINUTE), RateLimit("messages", 1, MINUTE)

    assert await is_allowed(hub, calls, "a")
    assert not await is_allowed(hub, calls, "a")
    assert await is_allowed(hub, calls, "b")
    assert await is_allowed(hub, messages, "a")


async def test_rows_without_effect_are_purged(hub: Hub, travel: Callable[[timedelta], Awaitable[None]]) -> None:
    await is_allowed(hub, RateLimit("calls", 1, MINUTE), "expired")
    await is_allowed(hub, RateLimit("calls", 1, timedelta(hours=1)), "active")
    await travel(MINUTE * 3)

    async with hub.autocommit() as tx:
        assert await purge_rate_limits(tx, batch=10) == 1
        assert await purge_rate_limits(tx, batch=10) == 0
    assert not await is_allowed(hub, RateLimit("calls", 1, timedelta(hours=1)), "active")


async def test_a_purge_keeps_rows_that_are_counted_concurrently(
    hub: Hub, travel: Callable[[timedelta], Awaitable[None]]
) -> None:
    limit = RateLimit("calls", 1, MINUTE)
    await is_allowed(hub, limit, "a")
    await travel(MINUTE * 3)

    async with hub.transaction() as counting, hub.autocommit() as tx:
        await consume_rate_limit(counting, limit, "a")
        async with asyncio.timeout(15):
            assert await purge_rate_limits(tx, batch=10) == 0

    assert not await is_allowed(hub, limit, "a")


@dataclass
class Model:
    """A model of GCRA in milliseconds, for one key."""

    step: int
    span: int
    tat: int = 0

    def take(self, now: int) -> bool:
        new = max(self.tat, now) + self.step
        if new > now + self.span:
            return False
        self.tat = new
        return True


@given(
    count=st.sampled_from([1, 2, 3, 5, 6]),
    pauses=st.lists(st.integers(0, 30).map(lambda seconds: seconds * 1000), max_size=15),
)
@trying(max_examples=20, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_the_limit_agrees_with_a_model(
    hub: Hub, database_urls: DatabaseUrls, count: int, pauses: list[int]
) -> None:
    limit, model, now = RateLimit("calls", count, MINUTE), Model(60_000 // count, 60_000), 0
    key = new_id().hex
    for pause in pauses:
        now += pause
        await stop_clock(database_urls, now)
        assert await is_allowed(hub, limit, key) is model.take(now)


async def stop_clock(database_urls: DatabaseUrls, milliseconds: int) -> None:
    """Stop the database's clock, so that the duration of the test does not matter."""
    async with open_connection(database_urls.direct or database_urls.main) as owner:
        await owner.execute(
            "create or replace function pabal.now() returns timestamptz language sql stable parallel safe "
            f"return timestamptz '2030-01-01' + make_interval(secs => {milliseconds / 1000})"
        )
