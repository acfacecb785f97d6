"""Limits of other servers: blocks shared by all processes, and reserved slots."""

import asyncio
from datetime import timedelta

import pytest

from pabal import limits
from pabal.core.errors import RateLimited
from pabal.hub import Hub
from pabal.limits import RateLimit
from support.lane_under_test import Travel

pytestmark = pytest.mark.anyio

SECOND = timedelta(seconds=1)
LIMIT = RateLimit("calls", 4, SECOND)


async def remaining_block(hub: Hub, *keys: str) -> timedelta:
    async with hub.autocommit() as tx:
        return await limits.blocked_for(tx, "discord", keys)


async def reserve(hub: Hub, within: timedelta = SECOND) -> timedelta:
    async with hub.autocommit() as tx:
        return await limits.reserve_rate_limit(tx, LIMIT, "all", within)


async def test_a_block_lasts_for_its_duration_and_the_longest_counts(hub: Hub, travel: Travel) -> None:
    async with hub.autocommit() as tx:
        await limits.block_rate_limit(tx, "discord", "a", 20 * SECOND)
        await limits.block_rate_limit(tx, "discord", "a", 5 * SECOND)
        await limits.block_rate_limit(tx, "discord", "b", 10 * SECOND)

    assert 15 * SECOND < await remaining_block(hub, "a", "b", "c") <= 20 * SECOND
    assert 6 * SECOND < await remaining_block(hub, "b") <= 10 * SECOND
    assert await remaining_block(hub, "c") == timedelta()

    await travel(20 * SECOND)
    assert await remaining_block(hub, "a", "b", "c") == timedelta()


@pytest.mark.usefixtures("stopped_clock")
async def test_slots_are_reserved_one_after_the_other(hub: Hub) -> None:
    waits = sorted(await asyncio.gather(*(reserve(hub) for _ in range(8))))

    assert waits[:4] == [timedelta()] * 4
    assert all(0 < wait.total_seconds() <= 1 for wait in waits[4:])
    with pytest.raises(RateLimited):
        await reserve(hub, within=timedelta())


@pytest.mark.usefixtures("stopped_clock")
async def test_a_slot_too_far_ahead_is_not_reserved(hub: Hub, travel: Travel) -> None:
    for _ in range(4):
        await reserve(hub)
    for _ in range(10):
        with pytest.raises(RateLimited):
            await reserve(hub, within=timedelta())

    await travel(SECOND)
    assert await reserve(hub, within=timedelta()) == timedelta()
