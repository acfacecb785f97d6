"""A handler with a retry schedule: when its failed events are tried again, and how often."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from pabal import client
from pabal.events.consume.lane import LANE
from pabal.hub import Hub
from support.clusters import Connection
from support.failed_events import EventQueue
from support.handler_app import run_program
from support.subscriptions import load_event, publish_test_event, wait_for_failures, wait_for_status
from support.wait import wait_until

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]
WAIT = "select extract(epoch from next_retry_at - pabal.now())::float from public.event_queue where id = $1"
RETRIES = "select max_retries, retries_from from public.event_queue where id = $1"


def failing_program(retry_schedule: list[int] | None = None) -> client.App:
    program = client.App("minu_build")

    @program.on("order.*", retry_schedule=retry_schedule)
    async def fail(_event: client.Event) -> None:
        raise RuntimeError("oh no")

    return program


async def test_a_failed_event_waits_for_its_step_and_dies_after_the_last(
    hub: Hub, owner: Connection, travel: Travel
) -> None:
    row = await publish_test_event(hub, "order.paid")
    async with run_program(hub, failing_program(retry_schedule=[600, 7200, 600, 600, 600])):
        await wait_for_failures(hub, row)
        first = await owner.fetchval(WAIT, row)
        limits = tuple(await owner.fetchrow(RETRIES, row) or ())
        await travel(timedelta(minutes=12))
        await wait_for_failures(hub, row, 2)
        second = await owner.fetchval(WAIT, row)
        for attempt in range(3, 6):
            await travel(timedelta(hours=3))
            await wait_for_failures(hub, row, attempt)
        await travel(timedelta(hours=3))
        dead = await wait_for_status(hub, row, "failed")

    assert 500 <= first <= 660, "ten minutes, with jitter"
    assert 6400 <= second <= 7920
    assert limits == (5, 3)
    assert len(dead.error_history or []) == 6


async def test_lost_leases_spend_attempts_of_the_schedule(
    hub: Hub, owner: Connection, event_queue: EventQueue, travel: Travel
) -> None:
    row = await publish_test_event(hub, "order.paid")
    assert await event_queue.claim()
    await travel(timedelta(minutes=2))
    async with hub.transaction() as tx:
        await LANE.revive(tx, 10)
    program, finish = client.App("minu_build"), asyncio.Event()

    @program.on("order.*", retry_schedule=[600] * 5)
    async def wait(_event: client.Event) -> None:
        await finish.wait()

    async def has_started() -> bool:
        return (await load_event(hub, row)).status == "processing"

    async with run_program(hub, program):
        await wait_until(has_started)
        limits = tuple(await owner.fetchrow(RETRIES, row) or ())
        finish.set()
        await wait_for_status(hub, row, "completed")

    assert limits == (5, 3)


async def test_the_publishers_number_of_retries_holds(hub: Hub, owner: Connection, travel: Travel) -> None:
    row = await publish_test_event(hub, "order.paid", max_retries=1)
    async with run_program(hub, failing_program(retry_schedule=[600, 600, 600])):
        await wait_for_failures(hub, row)
        await travel(timedelta(minutes=12))
        await wait_for_status(hub, row, "failed")

    assert await owner.fetchval("select max_retries from public.event_queue where id = $1", row) == 1


async def test_without_a_schedule_the_backoff_stays(hub: Hub, owner: Connection) -> None:
    row = await publish_test_event(hub, "order.paid")
    async with run_program(hub, failing_program()):
        await wait_for_failures(hub, row)
        limits = tuple(await owner.fetchrow(RETRIES, row) or ())

    assert limits == (3, None)


async def test_a_delay_of_the_handler_comes_first(hub: Hub, owner: Connection) -> None:
    program = client.App("minu_build")

    @program.on("order.*", retry_schedule=[5, 5, 5, 5])
    async def busy(_event: client.Event) -> client.Retry:
        return client.Retry("busy", delay=3600)

    row = await publish_test_event(hub, "order.paid")
    async with run_program(hub, program):
        await wait_for_failures(hub, row)
        assert 3500 <= await owner.fetchval(WAIT, row) <= 3600


@pytest.mark.parametrize("schedule", [[], [0], [86_401], [1] * 21])
def test_a_schedule_has_the_limits_of_a_subscription(schedule: list[int]) -> None:
    with pytest.raises(ValueError, match="retry_schedule: must be 1 to 20 delays of 1 to 86400 seconds"):
        client.App("minu_build").on("order.*", retry_schedule=schedule)
