"""Order within a key, whoever consumes and whatever becomes of each event."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import settings as trying
from hypothesis import strategies as st

from pabal.core.errors import Conflict
from pabal.events.events import cancel_event
from pabal.events.handlers import EventHandler, EventHandlers
from pabal.events.lane import LANE, ClaimedEvent, EventClaimFilter
from pabal.events.publish import EventDraft, PublishResult, publish_event_batch
from pabal.events.pull import EventPollRequest, Receipt, settle_claimed_events
from pabal.events.repair import advance_ordered_events
from pabal.hub import Hub
from pabal.queue.outcome import DONE, Dead, Outcome, Retry, Snooze
from pabal.queue.worker import Worker, WorkerConfig
from support.clusters import Connection
from support.lane_under_test import Travel
from support.subscriptions import TESTER, event, say
from support.wait import until

pytestmark = pytest.mark.anyio

CONSUMERS = 4
AT_ONCE = timedelta()
MINUTE = timedelta(minutes=1)
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)

ENDS = {
    "done": "completed",
    "retried": "completed",
    "snoozed": "completed",
    "dead": "failed",
    "worn out": "failed",
    "called off": "cancelled",
    "expired": "cancelled",
}
"""What may become of an event, and how the table then calls it."""

PLANS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([*ENDS])), min_size=1, max_size=25)


@dataclass
class Line:
    """Watches who of each key is out, and that each begins only when all before it have ended."""

    plan: list[tuple[str, str]]
    ended: set[int] = field(default_factory=set)
    out: Counter[str] = field(default_factory=Counter)
    turns: Counter[int] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ended |= {number for number, (_, fate) in enumerate(self.plan) if fate == "expired"}

    async def work(self, hub: Hub, item: ClaimedEvent) -> Outcome:
        number = item.payload["n"]
        key, fate = self.plan[number]
        before = {n for n, (other, _) in enumerate(self.plan[:number]) if other == key}
        if not before <= self.ended:
            self.broken.append(f"{number} began before {before - self.ended}")
        self.out[key] += 1
        if self.out[key] > 1:
            self.broken.append(f"{number} of {key} is not alone")
        self.turns[number] += 1
        await asyncio.sleep(0)
        outcome = await self._decide(hub, item, fate, self.turns[number])
        self.out[key] -= 1
        return outcome

    async def _decide(self, hub: Hub, item: ClaimedEvent, fate: str, turn: int) -> Outcome:
        match fate:
            case "retried" if turn <= 2:
                return Retry("again", AT_ONCE)
            case "worn out" if turn <= item.max_retries:
                return Retry("again", AT_ONCE)
            case "snoozed" if turn <= 2:
                return Snooze("later", AT_ONCE)
            case _:
                self.ended.add(item.payload["n"])
        match fate:
            case "dead":
                return Dead("never")
            case "worn out":
                return Retry("once more", AT_ONCE)
            case "called off":
                row = await event(hub, item.id)
                async with hub.transaction() as tx:
                    await cancel_event(tx, row, TESTER)
            case _:
                pass
        return DONE


async def put(hub: Hub, plan: list[tuple[str, str]]) -> None:
    drafts = [
        EventDraft(
            "minu_find",
            "order.paid",
            b'{"n": %d}' % number,
            "minu_build",
            max_retries=2,
            ordering_key=key,
            expires_at=LONG_AGO if fate == "expired" else None,
        )
        for number, (key, fate) in enumerate(plan)
    ]
    assert all(isinstance(each, PublishResult) for each in await publish_event_batch(hub.db, drafts))


async def pulls(hub: Hub, line: Line) -> None:
    """One who fetches, works and settles."""
    while True:
        found = await hub.event_long_poll.poll(EventPollRequest("minu_build", MINUTE), 3, timedelta(milliseconds=20))
        ends = {Receipt(item.id, item.lease): await line.work(hub, item) for item in found}
        async with hub.transaction() as tx:
            await settle_claimed_events(tx, "minu_build", ends)


async def handles(hub: Hub, line: Line) -> None:
    """A worker with a handler."""
    handlers = EventHandlers((EventHandler(("*",), "minu_build", partial(line.work, hub), 3, MINUTE),))
    pace = WorkerConfig(concurrency=3, poll_interval=timedelta(milliseconds=20))
    await Worker("w", LANE, hub.db, hub.doorbell, handlers.handle, partial(handlers.schedule, hub.db), pace).run()


async def calls(hub: Hub) -> None:
    """The chore that sees to those who joined or left a line while another did."""
    while True:
        async with hub.transaction() as tx:
            await advance_ordered_events(tx, 5000)
        await asyncio.sleep(0.02)


async def ended(owner: Connection) -> bool:
    return await owner.fetchval("select count(*) from public.event_queue where processed_at is null") == 0


@pytest.mark.parametrize("consume", [pulls, handles])
@given(plan=PLANS)
@example(plan=[("a", fate) for fate in ENDS] * 2)
@trying(max_examples=20, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_one_at_a_time_in_order_whatever_becomes_of_each(
    hub: Hub, owner: Connection, consume: Any, plan: list[tuple[str, str]]
) -> None:
    await owner.execute("delete from public.event_queue")
    line = Line(plan)
    await put(hub, plan)
    busy = [asyncio.create_task(consume(hub, line)) for _ in range(CONSUMERS)]
    busy.append(asyncio.create_task(calls(hub)))
    try:
        await until(lambda: ended(owner), within=30)
    finally:
        for each in busy:
            each.cancel()
        await asyncio.gather(*busy, return_exceptions=True)

    assert line.broken == []
    rows = await owner.fetch("select (payload->>'n')::integer as n, status from public.event_queue")
    assert {row["n"]: row["status"] for row in rows} == {n: ENDS[fate] for n, (_, fate) in enumerate(plan)}
    spent = {"done": 1, "retried": 3, "snoozed": 3, "dead": 1, "worn out": 3, "called off": 1, "expired": 0}
    assert line.turns == Counter({n: spent[fate] for n, (_, fate) in enumerate(plan) if spent[fate]})
    assert await owner.fetchval("select count(*) from pabal.event_order") == 0


class TestWhen:
    async def claim(self, hub: Hub, limit: int = 10) -> list[ClaimedEvent]:
        async with hub.autocommit() as tx:
            return await LANE.claim(tx, limit, MINUTE, "tester", EventClaimFilter("minu_build"))

    async def now(self, owner: Connection) -> datetime:
        return await owner.fetchval("select pabal.now()")

    async def test_an_event_for_later_comes_then(self, hub: Hub, owner: Connection, travel: Travel) -> None:
        later = await say(hub, "order.paid", deliver_at=await self.now(owner) + MINUTE)
        await travel(MINUTE - timedelta(seconds=5))
        assert await self.claim(hub) == []
        await travel(timedelta(seconds=5))

        [found] = await self.claim(hub)
        assert (found.id, found.attempt) == (later, 1)

    async def test_one_that_has_expired_is_never_handed_out_and_says_so(
        self, hub: Hub, owner: Connection, travel: Travel
    ) -> None:
        lost = await say(hub, "order.paid", expires_at=await self.now(owner) + MINUTE)
        kept = await say(hub, "order.paid", expires_at=await self.now(owner) + 3 * MINUTE)
        await travel(2 * MINUTE)

        assert [found.id for found in await self.claim(hub)] == [kept]
        gone = await event(hub, lost)
        assert (gone.status, gone.last_error) == ("cancelled", "expired")

    async def test_one_somebody_holds_does_not_expire_under_them(
        self, hub: Hub, owner: Connection, travel: Travel
    ) -> None:
        held = await say(hub, "order.paid", expires_at=await self.now(owner) + MINUTE / 2)
        [found] = await self.claim(hub)
        await travel(MINUTE / 2)
        await hub.chores.run_due()
        assert (await event(hub, held)).status == "processing"

        async with hub.transaction() as tx:
            assert await settle_claimed_events(tx, "minu_build", {Receipt(found.id, found.lease): DONE}) != set()
        with pytest.raises(Conflict):
            async with hub.transaction() as tx:
                await cancel_event(tx, await event(hub, held), TESTER)

    async def test_a_head_for_later_holds_its_key_until_then(self, hub: Hub, owner: Connection, travel: Travel) -> None:
        rows: list[UUID] = [
            await say(hub, "order.paid", ordering_key="k", deliver_at=await self.now(owner) + MINUTE),
            await say(hub, "order.paid", ordering_key="k", priority=1),
        ]
        assert await self.claim(hub) == []
        await travel(MINUTE)

        assert [found.id for found in await self.claim(hub)] == rows[:1]
