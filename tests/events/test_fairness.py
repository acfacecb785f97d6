"""A long queue of one service does not delay the events of another."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

import pabal_client as client
from pabal.events.consume.pull import EventPollRequest
from pabal.hub import Hub
from pabal.hub_workers import build_workers
from pabal.queue.worker import Worker
from support.clusters import Connection
from support.handler_app import build_handlers
from support.subscriptions import publish_test_event
from support.wait import wait_until

pytestmark = pytest.mark.anyio

FLOOD = 100_000
CONCURRENCY = 100
MAX_ATTEMPTS = 3
MINUTE = timedelta(minutes=1)


@pytest.fixture
async def flood(owner: Connection) -> None:
    """Insert FLOOD due events for minu_build."""
    await owner.execute("set session_replication_role = replica")  # event_due is filled below, in one statement
    await owner.execute(
        "insert into public.event_queue (id, event_type, source_service, target_service) "
        "select pabal.uuid7(), 'order.paid', 'minu_find', 'minu_build' from generate_series(1, $1::integer)",
        FLOOD,
    )
    await owner.execute(
        "insert into pabal.event_due (id, service, priority, due_at, seq, event_type) "
        "select id, target_service, priority, created_at, seq, event_type from public.event_queue"
    )
    await owner.execute("reset session_replication_role")


class Gates:
    """A handler for all events: each call waits until it is released."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self._gates: list[asyncio.Event] = []
        self._open = False

    async def handle(self, event: client.Event) -> None:
        self.began.append(event.target_service)
        gate = asyncio.Event()
        self._gates.append(gate)
        if not self._open:
            await gate.wait()

    def release_one(self) -> None:
        self._gates.pop(0).set()

    def release_all(self) -> None:
        self._open = True
        for gate in self._gates:
            gate.set()


@asynccontextmanager
async def run_gated_worker(hub: Hub, gates: Gates) -> AsyncGenerator[Worker[Any, Any]]:
    """One worker for two services, the first of which may use its whole concurrency."""
    program = client.App("minu_build")
    program.on("*", concurrency=CONCURRENCY)(gates.handle)
    program.on("*", service="minu_keep", concurrency=1)(gates.handle)
    [worker] = [
        candidate
        for candidate in build_workers(hub, build_handlers(program))
        if isinstance(candidate, Worker) and candidate.name.startswith("handlers:")
    ]
    worker.config = replace(worker.config, concurrency=CONCURRENCY)
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        gates.release_all()
        await task


@pytest.mark.usefixtures("flood")
class TestHandlers:
    async def test_an_early_event_of_another_service_starts_with_the_first_batch(self, hub: Hub) -> None:
        gates = Gates()
        await publish_test_event(hub, "order.paid", "minu_keep")
        async with run_gated_worker(hub, gates):
            await wait_until(lambda: "minu_keep" in gates.began)

            assert gates.began.index("minu_keep") <= CONCURRENCY // 2

    async def test_a_late_event_of_another_service_gets_one_of_the_next_free_slots(self, hub: Hub) -> None:
        """Slots that are freed one at a time must not always go to the first service of the schedule."""
        gates = Gates()
        async with run_gated_worker(hub, gates) as worker:
            await wait_until(lambda: worker.in_flight == len(gates.began) == CONCURRENCY)
            await publish_test_event(hub, "order.paid", "minu_keep")
            released = 0
            while "minu_keep" not in gates.began:
                assert released < MAX_ATTEMPTS
                before = len(gates.began)
                gates.release_one()
                released += 1
                await wait_until(lambda before=before: len(gates.began) > before)


@pytest.mark.usefixtures("flood")
class TestPulling:
    async def test_neither_a_first_claim_nor_a_waiting_one_is_delayed(self, hub: Hub) -> None:
        row = await publish_test_event(hub, "order.paid", "minu_keep")
        [claimed] = await hub.event_long_poll.poll(EventPollRequest("minu_keep", MINUTE), 10, timedelta())
        assert claimed.id == row

        waiting_poll = asyncio.create_task(hub.event_long_poll.poll(EventPollRequest("minu_keep", MINUTE), 10, MINUTE))
        await wait_until(lambda: bool(hub.event_long_poll._waiters))
        batches = [
            await hub.event_long_poll.poll(EventPollRequest("minu_build", MINUTE), 1000, MINUTE) for _ in range(3)
        ]
        row = await publish_test_event(hub, "order.paid", "minu_keep")
        async with asyncio.timeout(10):
            assert [event.id for event in await waiting_poll] == [row]
        assert [len(claimed) for claimed in batches] == [1000] * 3

    async def test_an_old_event_of_low_priority_is_not_starved(self, hub: Hub, owner: Connection) -> None:
        """One of eight claimed events is the longest due."""
        await owner.execute("update pabal.event_due set priority = 1; update public.event_queue set priority = 1")
        row = await publish_test_event(hub, "order.paid", priority=10)
        await owner.execute("update pabal.event_due set due_at = due_at - interval '1 hour' where id = $1", row)

        claims = 1
        while row not in {
            event.id for event in await hub.event_long_poll.poll(EventPollRequest("minu_build", MINUTE), 8, timedelta())
        }:
            assert claims < MAX_ATTEMPTS
            claims += 1
