"""Several programs that handle events of one service, each with its own handlers and concurrency."""

import asyncio
import re
from collections import Counter
from datetime import timedelta
from uuid import UUID

import httpx2
import pytest

import pabal_client as client
from pabal.events.consume.handlers import disable_unseen_programs, patterns_overlap
from pabal.events.consume.lane import LANE, EventClaimFilter
from pabal.hub import Hub
from pabal.stats import StatsReader
from support.clusters import Connection
from support.handler_app import build_handlers, run_program
from support.lane_under_test import Travel
from support.subscriptions import load_event, publish_test_event, subscribe, wait_for_status
from support.wait import wait_until

pytestmark = pytest.mark.anyio

UNHANDLED = re.compile(r'^pabal_events_unhandled\{.*service="(\w+)".*\} (\S+)$', re.MULTILINE)
MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)


def program_for(*event_types: str, handled: list[tuple[str, UUID]] | None = None) -> client.App:
    """A program of minu_build that handles these types and records its events."""
    program = client.App("minu_build")

    @program.on(*event_types)
    async def record(event: client.Event) -> None:
        if handled is not None:
            handled.append((event.event_type, event.id))

    return program


async def subscribed_types(owner: Connection) -> dict[str, list[str]]:
    rows = await owner.fetch(
        "select program, event_types from pabal.subscriptions where mode = 'handler' and disabled_at is null"
    )
    return {row["program"]: row["event_types"] for row in rows}


class TestSeveralPrograms:
    async def test_each_program_handles_only_its_own_types(self, hub: Hub, owner: Connection) -> None:
        orders, carts = list[tuple[str, UUID]](), list[tuple[str, UUID]]()
        first, second = program_for("order.*", handled=orders), program_for("cart.*", handled=carts)

        async with run_program(hub, first, "shop:orders"), run_program(hub, second, "shop:carts"):
            rows = [await publish_test_event(hub, f"{kind_name}.paid") for kind_name in ("order", "cart") * 20]
            await publish_test_event(hub, "order.sent", None)
            await publish_test_event(hub, "cart.sent", None)
            for row in rows:
                await wait_for_status(hub, row, "completed")
            await wait_until(lambda: len(orders) == len(carts) == 21)

        assert {kind.partition(".")[0] for kind, _ in orders} == {"order"}
        assert {kind.partition(".")[0] for kind, _ in carts} == {"cart"}
        assert await subscribed_types(owner) == {"shop:orders": ["order.*"], "shop:carts": ["cart.*"]}
        assert await owner.fetchval("select count(*) from public.event_queue where last_error is not null") == 0

    async def test_a_removed_handler_is_unsubscribed_at_the_next_start(self, hub: Hub, owner: Connection) -> None:
        for program_name, types in (("a", ("order.*", "cart.*")), ("b", ("bill.*",)), ("a", ("order.*",))):
            async with hub.transaction() as tx:
                await build_handlers(program_for(*types), program_name).subscribe_services(tx)

        assert await subscribed_types(owner) == {"a": ["order.*"], "b": ["bill.*"]}

    async def test_a_program_is_disabled_after_a_week_until_it_runs_again(
        self, hub: Hub, owner: Connection, travel: Travel
    ) -> None:
        running, idle = build_handlers(program_for("order.*"), "kept"), build_handlers(program_for("cart.*"), "left")
        async with hub.transaction() as tx:
            await running.subscribe_services(tx)
            await idle.subscribe_services(tx)
        disabled = list[int]()
        for _ in range(8):
            await travel(DAY)
            async with hub.transaction() as tx:
                await running.mark_seen(tx)
                disabled.append(await disable_unseen_programs(tx, 100))

        assert disabled == [0] * 6 + [1, 0]
        assert [*await subscribed_types(owner)] == ["kept"]
        [why] = await owner.fetch("select disabled_reason from pabal.subscriptions where program = 'left'")
        assert why["disabled_reason"] == "The program did not run for 7 days"
        async with hub.transaction() as tx:
            await idle.subscribe_services(tx)
        assert {*await subscribed_types(owner)} == {"kept", "left"}

    async def test_last_seen_is_written_once_an_hour(self, hub: Hub, owner: Connection, travel: Travel) -> None:
        program, changes = build_handlers(program_for("order.*")), Counter[int]()
        async with hub.transaction() as tx:
            await program.subscribe_services(tx)
        for _ in range(121):
            await travel(MINUTE)
            async with hub.transaction() as tx:
                await program.mark_seen(tx)
            changes[await owner.fetchval("select xmin::text::bigint from pabal.subscriptions")] += 1

        assert len(changes) == 3

    async def test_pausing_one_program_does_not_pause_the_other(self, hub: Hub, owner: Connection) -> None:
        first, second = program_for("order.*"), program_for("cart.*")
        async with run_program(hub, first, "a"), run_program(hub, second, "b"):
            await owner.execute("update pabal.subscriptions set paused_at = now() where program = 'a'")
            order, cart = await publish_test_event(hub, "order.paid"), await publish_test_event(hub, "cart.paid")
            await wait_for_status(hub, cart, "completed")
            assert (await load_event(hub, order)).status == "pending"
            await owner.execute("update pabal.subscriptions set paused_at = null where program = 'a'")
            await wait_for_status(hub, order, "completed")


class Gate:
    """A handler that waits until the gate is open, and counts how many events of each type it holds."""

    def __init__(self) -> None:
        self.held, self.peak = Counter[str](), Counter[str]()
        self.opened = asyncio.Event()

    async def wait(self, event: client.Event) -> None:
        kind = event.event_type
        self.held[kind] += 1
        self.peak[kind] = max(self.peak[kind], self.held[kind])
        await self.opened.wait()
        self.held[kind] -= 1


class TestConcurrency:
    @pytest.mark.parametrize("others", ["cart.*", "*"], ids=["apart", "overlapping"])
    async def test_a_busy_handler_takes_no_slot_of_the_others(self, hub: Hub, owner: Connection, others: str) -> None:
        program, gate, done = client.App("minu_build"), Gate(), 0
        program.on("order.*", concurrency=2)(gate.wait)

        @program.on(others, concurrency=3)
        async def quick(event: client.Event) -> None:
            nonlocal done
            done += 1

        orders = [await publish_test_event(hub, "order.paid") for _ in range(40)]
        async with run_program(hub, program):
            await wait_until(lambda: gate.peak["order.paid"] == 2)
            carts = [await publish_test_event(hub, "cart.paid") for _ in range(30)]
            for row in carts:
                await wait_for_status(hub, row, "completed")
            processing = "select count(*) from public.event_queue where status = 'processing'"
            assert await owner.fetchval(processing) == 2  # events it cannot run yet stay claimable
            untouched = "select count(*) from public.event_queue where updated_at = created_at"
            assert await owner.fetchval(untouched) == 38
            gate.opened.set()
            async with asyncio.timeout(10):  # less than forty polls of one second: a freed slot claims at once
                for row in orders:
                    await wait_for_status(hub, row, "completed")

        assert (gate.peak["order.paid"], done) == (2, 30)

    async def test_two_workers_of_one_program_share_the_events(self, hub: Hub) -> None:
        program, gate = client.App("minu_build"), Gate()
        program.on("order.*", concurrency=3)(gate.wait)
        rows = [await publish_test_event(hub, "order.paid") for _ in range(12)]
        async with run_program(hub, program), run_program(hub, program):
            await wait_until(lambda: gate.held["order.paid"] == 6)
            gate.opened.set()
            for row in rows:
                await wait_for_status(hub, row, "completed")

        assert gate.peak["order.paid"] == 6


async def unhandled(web: httpx2.AsyncClient) -> dict[str, float]:
    metrics = (await web.get("/metrics")).text
    return {service: float(count) for service, count in UNHANDLED.findall(metrics)}


class TestUnhandled:
    async def test_unhandled_events_stay_pending_and_are_counted(
        self, hub: Hub, web: httpx2.AsyncClient, travel: Travel
    ) -> None:
        handled = list[tuple[str, UUID]]()
        unhandled_ids = [
            await publish_test_event(hub, event_type, max_retries=0, priority=priority)
            for priority, event_type in enumerate(("a.b", "c.d"), 4)
        ]
        await publish_test_event(hub, "a.b", "minu_keep")  # a service without handlers is not counted
        await publish_test_event(hub, "a.b", deliver_at=(await load_event(hub, unhandled_ids[0])).created_at + DAY)
        async with run_program(hub, program_for("order.*", handled=handled)):
            await travel(MINUTE)
            await wait_for_status(hub, await publish_test_event(hub, "order.paid"), "completed")
            assert (await hub.stats.read()).unhandled[0].count == 2
            assert await unhandled(web) == {"minu_build": 2.0}

        waiting = await load_event(hub, unhandled_ids[0])
        assert (waiting.status, waiting.retry_count, waiting.last_error) == ("pending", 0, None)
        async with hub.autocommit() as tx:
            pulled = await LANE.claim(tx, 5, MINUTE, "pull:minu_build", EventClaimFilter("minu_build"))
        assert [pulled_event.id for pulled_event in pulled] == unhandled_ids

        async with hub.autocommit() as tx:
            await LANE.release(tx, pulled)
        async with run_program(hub, program_for("order.*", "a.*", "c.*", handled=handled)):
            for row in unhandled_ids:
                await wait_for_status(hub, row, "completed")

    async def test_an_event_is_not_unhandled_with_a_pull_subscription(self, hub: Hub, travel: Travel) -> None:
        async with hub.transaction() as tx:
            await build_handlers(program_for("order.*")).subscribe_services(tx)
        await publish_test_event(hub, "cart.paid")
        await publish_test_event(hub, "order.paid")

        async def unhandled_counts() -> list[tuple[str, int]]:
            return [(row.service, row.count) for row in (await StatsReader(hub.db).read()).unhandled]

        await travel(MINUTE)

        assert await unhandled_counts() == [("minu_build", 1)]
        await subscribe(hub, "minu_build", "cart.*")
        assert await unhandled_counts() == [("minu_build", 0)]


@pytest.mark.parametrize(
    ("first", "second", "overlap"),
    [
        ("order.paid", "order.paid", True),
        ("order.paid", "order.*", True),
        ("order.*", "order.paid", True),
        ("order.*", "order.p*", True),
        ("*", "order.*", True),
        ("order.*", "cart.*", False),
        ("order.paid", "order.sent", False),
        ("order.*", "cart.paid", False),
    ],
)
def test_patterns_overlap(first: str, second: str, *, overlap: bool) -> None:
    assert patterns_overlap(first, second) is overlap
