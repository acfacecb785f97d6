"""However much waits for one service, the one event of another is not kept waiting by it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from pabal import client
from pabal.events.pull import EventPollRequest
from pabal.hub import Hub, build_workers
from pabal.queue.worker import Worker
from support.clusters import Connection
from support.handler_app import made
from support.subscriptions import say
from support.wait import until

pytestmark = pytest.mark.anyio

FLOOD = 100_000
HANDS = 100
FEW = 3
MINUTE = timedelta(minutes=1)


@pytest.fixture
async def flood(owner: Connection) -> None:
    """So many events for minu_build, all due."""
    await owner.execute("set session_replication_role = replica")  # what is due is filled below, all at once
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
    """A handler for everything: each event waits at its own gate until it is let through."""

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

    def let_one_through(self) -> None:
        self._gates.pop(0).set()

    def let_all_through(self) -> None:
        self._open = True
        for gate in self._gates:
            gate.set()


@asynccontextmanager
async def working(hub: Hub, gates: Gates) -> AsyncGenerator[Worker[Any, Any]]:
    """One worker for two services: each of its hands can be at work for the first."""
    program = client.App("minu_build")
    program.on("*", concurrency=HANDS)(gates.handle)
    program.on("*", service="minu_keep", concurrency=1)(gates.handle)
    [worker] = [
        each
        for each in build_workers(hub, made(program))
        if isinstance(each, Worker) and each.name.startswith("handlers:")
    ]
    worker.config = replace(worker.config, concurrency=HANDS)
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        gates.let_all_through()
        await running


@pytest.mark.usefixtures("flood")
class TestHandlers:
    async def test_who_waits_from_the_beginning_starts_with_the_first_hands(self, hub: Hub) -> None:
        gates = Gates()
        await say(hub, "order.paid", "minu_keep")
        async with working(hub, gates):
            await until(lambda: "minu_keep" in gates.began)

            assert gates.began.index("minu_keep") <= HANDS // 2

    async def test_who_comes_when_all_hands_are_full_has_one_of_the_next_that_are_free(self, hub: Hub) -> None:
        """Hands that are freed one at a time would otherwise always go to whoever is first in the alphabet."""
        gates = Gates()
        async with working(hub, gates) as worker:
            await until(lambda: worker.in_flight == len(gates.began) == HANDS)
            await say(hub, "order.paid", "minu_keep")
            through = 0
            while "minu_keep" not in gates.began:
                assert through < FEW
                before = len(gates.began)
                gates.let_one_through()
                through += 1
                await until(lambda before=before: len(gates.began) > before)


@pytest.mark.usefixtures("flood")
class TestPulling:
    async def test_neither_the_first_claim_nor_a_waiting_one_sees_anything_of_it(self, hub: Hub) -> None:
        row = await say(hub, "order.paid", "minu_keep")
        [found] = await hub.event_long_poll.poll(EventPollRequest("minu_keep", MINUTE), 10, timedelta())
        assert found.id == row

        quiet = asyncio.create_task(hub.event_long_poll.poll(EventPollRequest("minu_keep", MINUTE), 10, MINUTE))
        await until(lambda: bool(hub.event_long_poll._waiters))
        many = [await hub.event_long_poll.poll(EventPollRequest("minu_build", MINUTE), 1000, MINUTE) for _ in range(3)]
        row = await say(hub, "order.paid", "minu_keep")
        async with asyncio.timeout(10):
            assert [each.id for each in await quiet] == [row]
        assert [len(found) for found in many] == [1000] * 3

    async def test_an_unurgent_event_is_not_starved_by_urgent_ones_that_keep_coming(
        self, hub: Hub, owner: Connection
    ) -> None:
        """One place in eight is for whatever is longest due."""
        await owner.execute("update pabal.event_due set priority = 1; update public.event_queue set priority = 1")
        row = await say(hub, "order.paid", priority=10)
        await owner.execute("update pabal.event_due set due_at = due_at - interval '1 hour' where id = $1", row)

        claims = 1
        while row not in {
            each.id for each in await hub.event_long_poll.poll(EventPollRequest("minu_build", MINUTE), 8, timedelta())
        }:
            assert claims < FEW
            claims += 1
