"""Programs: several of them handle events of one service, each what its own handlers take and as much as they can."""

import asyncio
import re
from collections import Counter
from datetime import timedelta
from uuid import UUID

import httpx2
import pytest

from pabal import client
from pabal.events.handlers import disable_unseen_programs, patterns_overlap
from pabal.events.lane import LANE, EventClaimFilter
from pabal.hub import Hub
from pabal.stats import StatsReader
from support.clusters import Connection
from support.handler_app import at_work, made
from support.lane_under_test import Travel
from support.subscriptions import ends, event, say, subscribe
from support.wait import until

pytestmark = pytest.mark.anyio

UNHANDLED = re.compile(r'^pabal_events_unhandled\{.*service="(\w+)".*\} (\S+)$', re.MULTILINE)
MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)


def program_for(*event_types: str, seen: list[tuple[str, UUID]] | None = None) -> client.App:
    """A program of minu_build that takes these types and keeps what it saw."""
    program = client.App("minu_build")

    @program.on(*event_types)
    async def keep(event: client.Event) -> None:
        if seen is not None:
            seen.append((event.event_type, event.id))

    return program


async def wanted(owner: Connection) -> dict[str, list[str]]:
    rows = await owner.fetch(
        "select program, event_types from pabal.subscriptions where mode = 'handler' and disabled_at is null"
    )
    return {row["program"]: row["event_types"] for row in rows}


class TestSideBySide:
    async def test_each_takes_its_own_types_and_leaves_the_other_its(self, hub: Hub, owner: Connection) -> None:
        orders, carts = list[tuple[str, UUID]](), list[tuple[str, UUID]]()
        one, other = program_for("order.*", seen=orders), program_for("cart.*", seen=carts)

        async with at_work(hub, one, "shop:orders"), at_work(hub, other, "shop:carts"):
            rows = [await say(hub, f"{each}.paid") for each in ("order", "cart") * 20]
            await say(hub, "order.sent", None)
            await say(hub, "cart.sent", None)
            for row in rows:
                await ends(hub, row, "completed")
            await until(lambda: len(orders) == len(carts) == 21)

        assert {kind.partition(".")[0] for kind, _ in orders} == {"order"}
        assert {kind.partition(".")[0] for kind, _ in carts} == {"cart"}
        assert await wanted(owner) == {"shop:orders": ["order.*"], "shop:carts": ["cart.*"]}
        assert await owner.fetchval("select count(*) from public.event_queue where last_error is not null") == 0

    async def test_what_it_no_longer_handles_goes_at_its_next_start(self, hub: Hub, owner: Connection) -> None:
        for called, types in (("a", ("order.*", "cart.*")), ("b", ("bill.*",)), ("a", ("order.*",))):
            async with hub.transaction() as tx:
                await made(program_for(*types), called).subscribe_services(tx)

        assert await wanted(owner) == {"a": ["order.*"], "b": ["bill.*"]}

    async def test_a_program_nobody_sees_is_given_up_until_it_comes_back(
        self, hub: Hub, owner: Connection, travel: Travel
    ) -> None:
        kept, left = made(program_for("order.*"), "kept"), made(program_for("cart.*"), "left")
        async with hub.transaction() as tx:
            await kept.subscribe_services(tx)
            await left.subscribe_services(tx)
        given_up = list[int]()
        for _ in range(8):
            await travel(DAY)
            async with hub.transaction() as tx:
                await kept.mark_seen(tx)
                given_up.append(await disable_unseen_programs(tx, 100))

        assert given_up == [0] * 6 + [1, 0]
        assert [*await wanted(owner)] == ["kept"]
        [why] = await owner.fetch("select disabled_reason from pabal.subscriptions where program = 'left'")
        assert why["disabled_reason"] == "The program did not run for 7 days"
        async with hub.transaction() as tx:
            await left.subscribe_services(tx)
        assert {*await wanted(owner)} == {"kept", "left"}

    async def test_being_seen_is_written_down_once_an_hour(self, hub: Hub, owner: Connection, travel: Travel) -> None:
        program, changes = made(program_for("order.*")), Counter[int]()
        async with hub.transaction() as tx:
            await program.subscribe_services(tx)
        for _ in range(121):
            await travel(MINUTE)
            async with hub.transaction() as tx:
                await program.mark_seen(tx)
            changes[await owner.fetchval("select xmin::text::bigint from pabal.subscriptions")] += 1

        assert len(changes) == 3

    async def test_pausing_one_does_not_pause_the_other(self, hub: Hub, owner: Connection) -> None:
        one, other = program_for("order.*"), program_for("cart.*")
        async with at_work(hub, one, "a"), at_work(hub, other, "b"):
            await owner.execute("update pabal.subscriptions set paused_at = now() where program = 'a'")
            order, cart = await say(hub, "order.paid"), await say(hub, "cart.paid")
            await ends(hub, cart, "completed")
            assert (await event(hub, order)).status == "pending"
            await owner.execute("update pabal.subscriptions set paused_at = null where program = 'a'")
            await ends(hub, order, "completed")


class Gate:
    """A handler that goes on only when the gate is open, and how many of each type were in its hands at once."""

    def __init__(self) -> None:
        self.held, self.most = Counter[str](), Counter[str]()
        self.opened = asyncio.Event()

    async def wait(self, event: client.Event) -> None:
        kind = event.event_type
        self.held[kind] += 1
        self.most[kind] = max(self.most[kind], self.held[kind])
        await self.opened.wait()
        self.held[kind] -= 1


class TestRoom:
    @pytest.mark.parametrize("others", ["cart.*", "*"], ids=["apart", "overlapping"])
    async def test_a_busy_handler_takes_no_hand_of_the_others(self, hub: Hub, owner: Connection, others: str) -> None:
        program, gate, done = client.App("minu_build"), Gate(), 0
        program.on("order.*", concurrency=2)(gate.wait)

        @program.on(others, concurrency=3)
        async def quick(event: client.Event) -> None:
            nonlocal done
            done += 1

        orders = [await say(hub, "order.paid") for _ in range(40)]
        async with at_work(hub, program):
            await until(lambda: gate.most["order.paid"] == 2)
            carts = [await say(hub, "cart.paid") for _ in range(30)]
            for row in carts:
                await ends(hub, row, "completed")
            processing = "select count(*) from public.event_queue where status = 'processing'"
            assert await owner.fetchval(processing) == 2  # what it cannot work on yet is left where others may take it
            untouched = "select count(*) from public.event_queue where updated_at = created_at"
            assert await owner.fetchval(untouched) == 38
            gate.opened.set()
            async with asyncio.timeout(10):  # less than forty looks, one a second: a hand that is freed looks itself
                for row in orders:
                    await ends(hub, row, "completed")

        assert (gate.most["order.paid"], done) == (2, 30)

    async def test_two_workers_of_one_program_share_what_there_is(self, hub: Hub) -> None:
        program, gate = client.App("minu_build"), Gate()
        program.on("order.*", concurrency=3)(gate.wait)
        rows = [await say(hub, "order.paid") for _ in range(12)]
        async with at_work(hub, program), at_work(hub, program):
            await until(lambda: gate.held["order.paid"] == 6)
            gate.opened.set()
            for row in rows:
                await ends(hub, row, "completed")

        assert gate.most["order.paid"] == 6


async def unhandled(web: httpx2.AsyncClient) -> dict[str, float]:
    told = (await web.get("/metrics")).text
    return {service: float(count) for service, count in UNHANDLED.findall(told)}


class TestUnhandled:
    async def test_what_no_handler_takes_waits_untouched_and_is_a_number(
        self, hub: Hub, web: httpx2.AsyncClient, travel: Travel
    ) -> None:
        seen = list[tuple[str, UUID]]()
        strange = [await say(hub, each, max_retries=0, priority=place) for place, each in enumerate(("a.b", "c.d"), 4)]
        await say(hub, "a.b", "minu_keep")  # which has no handlers: somebody will pull it
        await say(hub, "a.b", deliver_at=(await event(hub, strange[0])).created_at + DAY)
        async with at_work(hub, program_for("order.*", seen=seen)):
            await travel(MINUTE)
            await ends(hub, await say(hub, "order.paid"), "completed")
            assert (await hub.stats.read()).unhandled[0].count == 2
            assert await unhandled(web) == {"minu_build": 2.0}

        waits = await event(hub, strange[0])
        assert (waits.status, waits.retry_count, waits.last_error) == ("pending", 0, None)
        async with hub.autocommit() as tx:
            pulled = await LANE.claim(tx, 5, MINUTE, "pull:minu_build", EventClaimFilter("minu_build"))
        assert [each.id for each in pulled] == strange

        async with hub.autocommit() as tx:
            await LANE.release(tx, pulled)
        async with at_work(hub, program_for("order.*", "a.*", "c.*", seen=seen)):
            for row in strange:
                await ends(hub, row, "completed")

    async def test_it_is_no_longer_one_when_somebody_subscribes(self, hub: Hub, travel: Travel) -> None:
        async with hub.transaction() as tx:
            await made(program_for("order.*")).subscribe_services(tx)
        await say(hub, "cart.paid")
        await say(hub, "order.paid")

        async def counted() -> list[tuple[str, int]]:
            return [(each.service, each.count) for each in (await StatsReader(hub.db).read()).unhandled]

        await travel(MINUTE)

        assert await counted() == [("minu_build", 1)]
        await subscribe(hub, "minu_build", "cart.*")
        assert await counted() == [("minu_build", 0)]


@pytest.mark.parametrize(
    ("one", "other", "they_do"),
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
def test_whether_two_patterns_meet(one: str, other: str, *, they_do: bool) -> None:
    assert patterns_overlap(one, other) is they_do
