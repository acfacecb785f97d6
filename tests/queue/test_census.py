"""The census: counted once for everybody, and nobody who must not wait waits for it."""

from collections.abc import AsyncGenerator
from time import monotonic

import pytest

from clusters import connected
from lane_under_test import Events, Travel
from pabal.queue.census import FRESH, OLD, Count
from pabal.wiring import Hub, Roads
from patience import until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def events(hub: Hub, roads: Roads, travel: Travel) -> AsyncGenerator[Events]:
    assert roads.direct
    async with connected(roads.direct) as owner:
        yield Events(hub, owner, travel)


def aged(hub: Hub, count: Count, seconds: float) -> None:
    """As if the last count had been taken so long ago."""
    hub.census._last = (monotonic() - seconds, count)


async def test_what_waits_and_for_how_long(hub: Hub, events: Events) -> None:
    await events.put(3)
    await events.travel(minutes=5)
    [held] = await events.claim(limit=1)

    lane = (await hub.census.take()).lane("events")

    assert (lane.waiting, lane.in_flight, lane.oldest_due.total_seconds() // 60) == (2, 1, 5)
    assert held.id


async def test_who_must_not_wait_is_shown_the_last_count_while_the_next_is_taken(hub: Hub, events: Events) -> None:
    before = await hub.census.glance()
    await events.put(3)
    aged(hub, before, FRESH)

    assert await hub.census.glance() is before
    await until(lambda: hub.census._last is not None and hub.census._last[1] is not before)
    assert (await hub.census.glance()).lane("events").waiting == 3


async def test_a_count_that_is_too_old_is_shown_to_nobody(hub: Hub, events: Events) -> None:
    before = await hub.census.glance()
    await events.put(3)
    aged(hub, before, OLD)

    assert (await hub.census.glance()).lane("events").waiting == 3
