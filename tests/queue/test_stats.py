"""Cached statistics: one count serves all readers, and `read_cached` rarely waits for it."""

from collections.abc import AsyncGenerator
from time import monotonic

import pytest

from pabal.hub import DatabaseUrls, Hub
from pabal.stats import CACHE_SECONDS, MAX_STALE_SECONDS, HubStats
from support.clusters import open_connection
from support.lane_under_test import Events, Travel
from support.wait import wait_until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def events(hub: Hub, database_urls: DatabaseUrls, travel: Travel) -> AsyncGenerator[Events]:
    assert database_urls.direct
    async with open_connection(database_urls.direct) as owner:
        yield Events(hub, owner, travel)


def set_age(hub: Hub, count: HubStats, seconds: float) -> None:
    """Pretend that the cached count was taken `seconds` ago."""
    hub.stats._last = (monotonic() - seconds, count)


async def test_a_count_has_waiting_rows_and_the_age_of_the_oldest(hub: Hub, events: Events) -> None:
    await events.put(3)
    await events.travel(minutes=5)
    [claimed] = await events.claim(limit=1)

    lane = (await hub.stats.read()).lane("events")

    assert (lane.waiting, lane.in_flight, lane.oldest_due.total_seconds() // 60) == (2, 1, 5)
    assert claimed.id


async def test_events_claimed_with_plain_sql_are_in_flight_until_they_end(hub: Hub, events: Events) -> None:
    await events.put(3)
    claim = "update public.event_queue set status = 'processing' where status = 'pending'"
    assert await events.owner.execute(claim) == "UPDATE 3"

    assert (await hub.stats.read()).lane("events").in_flight == 3

    await events.owner.execute("update public.event_queue set status = 'completed'")
    hub.stats._last = None
    assert (await hub.stats.read()).lane("events").in_flight == 0


async def test_a_cached_read_returns_the_last_count_while_the_next_is_taken(hub: Hub, events: Events) -> None:
    before = await hub.stats.read_cached()
    await events.put(3)
    set_age(hub, before, CACHE_SECONDS)

    assert await hub.stats.read_cached() is before
    await wait_until(lambda: hub.stats._last is not None and hub.stats._last[1] is not before)
    assert (await hub.stats.read_cached()).lane("events").waiting == 3


async def test_a_count_that_is_too_old_is_not_returned(hub: Hub, events: Events) -> None:
    before = await hub.stats.read_cached()
    await events.put(3)
    set_age(hub, before, MAX_STALE_SECONDS)

    assert (await hub.stats.read_cached()).lane("events").waiting == 3
