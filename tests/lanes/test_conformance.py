"""Guarantees of every lane."""

import asyncio
from datetime import timedelta

import pytest

from pabal.queue.lane import Capability
from pabal.queue.outcome import DONE, Dead, Retry, Snooze
from support.lane_under_test import MINUTE, LaneUnderTest

pytestmark = pytest.mark.anyio


async def test_a_row_is_claimed_once_and_settled(lane: LaneUnderTest) -> None:
    ids = await lane.put(3)

    claimed = await lane.claim()
    assert sorted(row.id for row in claimed) == sorted(ids)
    assert await lane.claim() == []

    assert await lane.settle_all([(row, DONE) for row in claimed]) == set(ids)
    assert sum((await lane.states()).values()) == 3
    await lane.travel(hours=1)
    assert await lane.claim() == []


async def test_eight_claimers_never_share_a_row(lane: LaneUnderTest) -> None:
    ids = await lane.put(20_000)
    claimed_ids: list[object] = []

    async def claimer() -> None:
        while rows := await lane.claim(limit=97):
            claimed_ids.extend(row.id for row in rows)
            await lane.settle_all([(row, DONE) for row in rows])

    await asyncio.gather(*(claimer() for _ in range(8)))

    assert len(claimed_ids) == 20_000
    assert set(claimed_ids) == set(ids)


async def test_an_expired_lease_makes_the_row_due_again_and_the_fence_holds(lane: LaneUnderTest) -> None:
    await lane.put()
    [first] = await lane.claim(hold=MINUTE)

    await lane.travel(seconds=59)
    assert await lane.claim() == []
    await lane.travel(seconds=1)
    [second] = await lane.claim()

    assert second.id == first.id
    assert second.attempt == 2
    assert not await lane.settle(first, DONE)
    assert await lane.settle(second, DONE)


async def test_a_row_is_settled_once(lane: LaneUnderTest) -> None:
    await lane.put()
    [row] = await lane.claim()

    results = await asyncio.gather(*(lane.settle(row, DONE) for _ in range(8)))

    assert results.count(True) == 1


async def test_a_heartbeat_extends_the_lease_of_a_slow_holder(lane: LaneUnderTest) -> None:
    await lane.put(2)
    rows = await lane.claim(hold=MINUTE)

    for _ in range(5):
        await lane.travel(seconds=50)
        assert await lane.extend(rows, MINUTE) == set()
        assert await lane.claim() == []

    assert len(await lane.settle_all([(row, DONE) for row in rows])) == 2


async def test_a_heartbeat_returns_the_rows_whose_lease_is_lost(lane: LaneUnderTest) -> None:
    await lane.put()
    [first] = await lane.claim(hold=MINUTE)
    await lane.travel(minutes=2)
    [second] = await lane.claim(hold=MINUTE)

    assert await lane.extend([first]) == {first.id}
    assert await lane.extend([second]) == set()


async def test_released_rows_are_due_at_once_and_cost_no_attempt(lane: LaneUnderTest) -> None:
    await lane.put(2)
    first = await lane.claim()

    assert len(await lane.release(first)) == 2
    second = await lane.claim()

    assert {row.id for row in second} == {row.id for row in first}
    if Capability.RETRY in lane.capabilities:
        assert {row.attempt for row in second} == {1}


@pytest.mark.needs(Capability.RETRY, Capability.DEAD_LETTER)
async def test_retries_back_off_and_the_last_one_is_dead(lane: LaneUnderTest) -> None:
    await lane.put()
    attempts: list[int] = []
    max_attempts = 0
    while rows := await lane.claim():
        [row] = rows
        attempts.append(row.attempt)
        max_attempts = row.max_attempts
        await lane.settle(row, Retry(f"attempt {row.attempt} failed"))
        assert await lane.claim() == []
        await lane.travel(minutes=6)

    assert attempts == [*range(1, attempts[-1] + 1)]
    assert attempts[-1] == max_attempts
    assert await lane.states() == {"failed": 1}


@pytest.mark.needs(Capability.RETRY)
async def test_a_retry_waits_for_its_delay(lane: LaneUnderTest) -> None:
    await lane.put()
    [row] = await lane.claim()
    await lane.settle(row, Retry("come back later", delay=timedelta(seconds=30)))

    await lane.travel(seconds=29)
    assert await lane.claim() == []
    await lane.travel(seconds=1)
    assert len(await lane.claim()) == 1


@pytest.mark.needs(Capability.DEAD_LETTER)
async def test_dead_is_immediate_and_final(lane: LaneUnderTest) -> None:
    await lane.put()
    [row] = await lane.claim()

    assert await lane.settle(row, Dead("never"))
    await lane.travel(hours=1)

    assert await lane.claim() == []
    assert await lane.states() == {"failed": 1}


@pytest.mark.needs(Capability.DEAD_LETTER)
async def test_a_row_whose_holders_keep_crashing_becomes_dead(lane: LaneUnderTest) -> None:
    await lane.put()
    claims = 0
    while await lane.claim(hold=MINUTE):
        claims += 1
        assert claims < 10
        await lane.travel(minutes=1)

    assert claims in {3, 4}
    assert await lane.states() == {"failed": 1}


@pytest.mark.needs(Capability.RETRY)
async def test_a_snooze_costs_no_attempt(lane: LaneUnderTest) -> None:
    await lane.put()
    for _ in range(6):
        [row] = await lane.claim()
        assert row.attempt == 1
        await lane.settle(row, Snooze("rate limited", timedelta(seconds=10)))
        assert await lane.claim() == []
        await lane.travel(seconds=10)
    [row] = await lane.claim()
    await lane.settle(row, Retry("failed"))
    await lane.travel(minutes=1)
    [row] = await lane.claim()
    assert row.attempt == 2
    await lane.settle(row, Snooze("rate limited", timedelta(seconds=10)))
    await lane.travel(seconds=10)
    [row] = await lane.claim()
    assert row.attempt == 2


@pytest.mark.needs(Capability.DELAY)
async def test_a_row_is_not_claimed_before_it_is_due(lane: LaneUnderTest) -> None:
    await lane.put(due=timedelta(minutes=10))

    await lane.travel(minutes=9)
    assert await lane.claim() == []
    await lane.travel(minutes=1)
    assert len(await lane.claim()) == 1


@pytest.mark.needs(Capability.EXPIRE)
async def test_an_expired_row_is_not_claimed(lane: LaneUnderTest) -> None:
    await lane.put(expires=timedelta(minutes=5))
    await lane.travel(minutes=5)

    assert await lane.claim() == []
    await lane.expire()

    [state] = await lane.states()
    assert state in {"EXPIRED", "cancelled", "suppressed"}


@pytest.mark.needs(Capability.EXPIRE)
async def test_a_held_row_does_not_expire(lane: LaneUnderTest) -> None:
    await lane.put(expires=timedelta(minutes=5))
    [row] = await lane.claim(hold=timedelta(minutes=10))

    await lane.travel(minutes=6)
    assert await lane.expire() == 0

    assert await lane.settle(row, DONE)


async def test_purge_deletes_only_rows_that_ended_long_ago(lane: LaneUnderTest) -> None:
    late_expiry = {"expires": timedelta(days=400)}
    await lane.put(2, **late_expiry)
    claimed = await lane.claim(limit=1)
    await lane.settle(claimed[0], DONE)
    await lane.travel(days=100)
    await lane.put(1, **late_expiry)
    [*_, last] = await lane.claim(limit=2, hold=timedelta(days=300))
    await lane.settle(last, DONE)

    assert await lane.purge(days=90) == 1
    assert sum((await lane.states()).values()) == 2


@pytest.mark.needs(Capability.PRIORITY)
async def test_urgent_rows_are_claimed_first(lane: LaneUnderTest) -> None:
    await lane.put(5, priority=5)
    await lane.put(2, priority=1)

    first = await lane.claim(limit=2)
    rest = await lane.claim(limit=10)

    assert len(first) == 2
    assert len(rest) == 5
    assert {row.id for row in first}.isdisjoint(row.id for row in rest)


@pytest.mark.needs(Capability.ARRIVAL_ORDER)
async def test_rows_are_claimed_in_order_of_arrival(lane: LaneUnderTest) -> None:
    ids = await lane.put(50)

    assert [row.id for row in await lane.claim(limit=20)] == ids[:20]
    assert [row.id for row in await lane.claim(limit=50)] == ids[20:]
