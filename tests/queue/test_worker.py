"""The worker, on the event lane and a real database."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from pabal.events.consume.lane import ClaimedEvent
from pabal.hub import DatabaseUrls, Hub
from pabal.queue.outcome import DONE, Dead, Outcome, Retry
from support.lane_under_test import Events, Travel
from support.wait import wait_until
from support.worker import run_worker, wait_for_states

pytestmark = pytest.mark.anyio

TIMEOUT = 10.0


@pytest.fixture
async def events(hub: Hub, database_urls: DatabaseUrls, travel: Travel) -> AsyncGenerator[Events]:
    assert database_urls.direct
    owner = await asyncpg.connect(database_urls.direct)
    yield Events(hub, owner, travel)
    owner.terminate()


async def test_every_event_is_handled_and_completed(hub: Hub, events: Events) -> None:
    handled: list[Any] = []

    async def handle(event: ClaimedEvent) -> Outcome:
        handled.append(event.id)
        return DONE

    ids = await events.put(2000)
    async with run_worker(hub, handle):
        await wait_for_states(events, completed=2000)

    assert sorted(handled) == sorted(ids)


async def test_an_idle_worker_is_woken_by_the_doorbell_before_it_polls(hub: Hub, events: Events) -> None:
    handled = asyncio.Event()

    async def handle(_event: ClaimedEvent) -> Outcome:
        handled.set()
        return DONE

    async with run_worker(hub, handle, poll_interval=timedelta(hours=1)) as worker:
        await wait_until(lambda: hub.doorbell.listening and bool(hub.doorbell._listeners[worker.lane.channel]))
        await events.put()  # plain SQL, from another connection
        async with asyncio.timeout(TIMEOUT):
            await handled.wait()


async def test_a_poison_row_does_not_stop_the_others(hub: Hub, events: Events) -> None:
    [poison] = await events.put(1, max_retries=0)
    await events.put(20)

    async def handle(event: ClaimedEvent) -> Outcome:
        if event.id == poison:
            raise ValueError("\x00 cannot be stored")
        return DONE

    async with run_worker(hub, handle):
        await wait_for_states(events, completed=20, failed=1)

    dead_letter = await events.owner.fetchrow("select * from public.dead_letter_queue")
    assert dead_letter is not None
    assert dead_letter["error_message"] == "ValueError: \ufffd cannot be stored"
    assert "test_worker.py" in dead_letter["error_stack"]


async def test_a_worker_never_holds_more_rows_than_its_concurrency(hub: Hub, events: Events) -> None:
    await events.put(50)
    max_running = 0
    gate, running = asyncio.Event(), 0

    async def handle(_event: ClaimedEvent) -> Outcome:
        nonlocal max_running, running
        running += 1
        max_running = max(max_running, running)
        await gate.wait()
        running -= 1
        return DONE

    async with run_worker(hub, handle, concurrency=7):
        await wait_until(lambda: running == 7)
        gate.set()
        await wait_for_states(events, completed=50)

    assert max_running == 7


async def test_a_slow_handler_keeps_its_lease(hub: Hub, events: Events) -> None:
    await events.put()
    started, gate = asyncio.Event(), asyncio.Event()
    calls = 0

    async def handle(_event: ClaimedEvent) -> Outcome:
        nonlocal calls
        calls += 1
        started.set()
        await gate.wait()
        return DONE

    async with run_worker(hub, handle, hold=timedelta(milliseconds=150), poll_interval=timedelta(milliseconds=20)):
        await started.wait()
        first = await events.owner.fetchval("select until from pabal.event_leases")

        async def extended_twice() -> bool:
            lease_end = await events.owner.fetchval("select until from pabal.event_leases")
            return lease_end >= first + timedelta(milliseconds=300)

        await wait_until(extended_twice)
        gate.set()
        await wait_for_states(events, completed=1)

    assert calls == 1


async def test_the_handler_of_a_cancelled_event_is_cancelled(hub: Hub, events: Events) -> None:
    await events.put()
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def handle(_event: ClaimedEvent) -> Outcome:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return DONE

    async with run_worker(hub, handle, hold=timedelta(milliseconds=150)):
        await started.wait()
        await events.owner.execute("update public.event_queue set status = 'cancelled'")
        async with asyncio.timeout(TIMEOUT):
            await cancelled.wait()

    assert await events.states() == {"cancelled": 1}


async def test_stopping_finishes_what_it_can_and_releases_the_rest_without_an_attempt(hub: Hub, events: Events) -> None:
    await events.put(2)
    started: list[ClaimedEvent] = []
    both_started, gate = asyncio.Event(), asyncio.Event()

    async def handle(event: ClaimedEvent) -> Outcome:
        started.append(event)
        if len(started) == 2:
            both_started.set()
        await (gate if event is started[0] else asyncio.Event()).wait()
        return DONE

    async with run_worker(hub, handle, shutdown_grace=timedelta(milliseconds=200)) as worker:
        await both_started.wait()
        worker.stop()
        gate.set()

    assert await events.states() == {"completed": 1, "pending": 1}
    [reclaimed] = await events.claim()
    assert reclaimed.attempt == 1


async def test_an_event_is_settled_as_its_handler_returned(hub: Hub, events: Events) -> None:
    outcomes: dict[Any, Outcome] = {}
    ids = await events.put(3)
    outcomes |= dict(zip(ids, [DONE, Retry("later", timedelta(hours=1)), Dead("never", "gone")], strict=True))

    async def handle(event: ClaimedEvent) -> Outcome:
        return outcomes[event.id]

    async with run_worker(hub, handle):
        await wait_for_states(events, completed=1, pending=1, failed=1)


async def test_a_busy_service_leaves_slots_for_a_quiet_one(hub: Hub, events: Events) -> None:
    await events.put(500)
    [quiet] = await events.put(1, target="minu_keep")
    order: list[Any] = []

    async def handle(event: ClaimedEvent) -> Outcome:
        order.append(event.id)
        return DONE

    async with run_worker(hub, handle, concurrency=20):
        await wait_for_states(events, completed=501)

    assert order.index(quiet) < 40
