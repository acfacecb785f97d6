"""Order within an ordering key, for every consumer and every outcome."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from pabal.core.errors import Conflict
from pabal.events.consume.handlers import EventHandler, EventHandlers
from pabal.events.consume.lane import LANE, ClaimedEvent, EventClaimFilter
from pabal.events.consume.pull import EventPollRequest, Receipt, settle_claimed_events
from pabal.events.events import cancel_event
from pabal.events.publish.publish import EventDraft, PublishResult, publish_event_batch
from pabal.events.repair.repair import advance_ordered_events
from pabal.hub import Hub
from pabal.queue.outcome import DONE, Dead, Outcome, Retry, Snooze
from pabal.queue.worker import Worker, WorkerConfig
from support.clusters import Connection
from support.lane_under_test import Travel
from support.subscriptions import TESTER, load_event, publish_test_event
from support.wait import wait_until

pytestmark = pytest.mark.anyio

CONSUMERS = 4
NO_DELAY = timedelta()
MINUTE = timedelta(minutes=1)
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)

STATUS_BY_FATE = {
    "done": "completed",
    "retried": "completed",
    "snoozed": "completed",
    "dead": "failed",
    "exhausted": "failed",
    "cancelled": "cancelled",
    "expired": "cancelled",
}
"""Fates of an event, and the status each ends with."""

PLANS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([*STATUS_BY_FATE])), min_size=1, max_size=25)


@dataclass
class OrderChecker:
    """Checks that one event per key is in progress, and that it starts only after all earlier ones ended."""

    plan: list[tuple[str, str]]
    ended: set[int] = field(default_factory=set)
    in_progress: Counter[str] = field(default_factory=Counter)
    attempts: Counter[int] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ended |= {number for number, (_, fate) in enumerate(self.plan) if fate == "expired"}

    async def work(self, hub: Hub, item: ClaimedEvent) -> Outcome:
        number = item.payload["n"]
        key, fate = self.plan[number]
        before = {n for n, (other, _) in enumerate(self.plan[:number]) if other == key}
        if not before <= self.ended:
            self.violations.append(f"{number} began before {before - self.ended}")
        self.in_progress[key] += 1
        if self.in_progress[key] > 1:
            self.violations.append(f"{number} of {key} is not the only one in progress")
        self.attempts[number] += 1
        await asyncio.sleep(0)
        outcome = await self._decide(hub, item, fate, self.attempts[number])
        self.in_progress[key] -= 1
        return outcome

    async def _decide(self, hub: Hub, item: ClaimedEvent, fate: str, attempt: int) -> Outcome:
        match fate:
            case "retried" if attempt <= 2:
                return Retry("again", NO_DELAY)
            case "exhausted" if attempt <= item.max_retries:
                return Retry("again", NO_DELAY)
            case "snoozed" if attempt <= 2:
                return Snooze("later", NO_DELAY)
            case _:
                self.ended.add(item.payload["n"])
        match fate:
            case "dead":
                return Dead("never")
            case "exhausted":
                return Retry("once more", NO_DELAY)
            case "cancelled":
                row = await load_event(hub, item.id)
                async with hub.transaction() as tx:
                    await cancel_event(tx, row, TESTER)
            case _:
                pass
        return DONE


async def publish_plan(hub: Hub, plan: list[tuple[str, str]]) -> None:
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
    assert all(isinstance(result, PublishResult) for result in await publish_event_batch(hub.db, drafts))


async def consume_by_pull(hub: Hub, checker: OrderChecker) -> None:
    """A consumer that polls, handles and settles."""
    while True:
        claimed = await hub.event_long_poll.poll(EventPollRequest("minu_build", MINUTE), 3, timedelta(milliseconds=20))
        outcomes = {Receipt(item.id, item.lease): await checker.work(hub, item) for item in claimed}
        async with hub.transaction() as tx:
            await settle_claimed_events(tx, "minu_build", outcomes)


async def consume_by_handler(hub: Hub, checker: OrderChecker) -> None:
    """A worker with a handler."""
    handlers = EventHandlers((EventHandler(("*",), "minu_build", partial(checker.work, hub), 3, MINUTE),))
    config = WorkerConfig(concurrency=3, poll_interval=timedelta(milliseconds=20))
    await Worker("w", LANE, hub.db, hub.doorbell, handlers.handle, handlers.schedule, config).run()


async def run_advance_chore(hub: Hub) -> None:
    """The chore that advances keys with concurrent changes."""
    while True:
        async with hub.transaction() as tx:
            await advance_ordered_events(tx, 5000)
        await asyncio.sleep(0.02)


async def all_ended(owner: Connection) -> bool:
    return await owner.fetchval("select count(*) from public.event_queue where processed_at is null") == 0


@pytest.mark.parametrize("consume", [consume_by_pull, consume_by_handler])
@given(plan=PLANS)
@example(plan=[("a", fate) for fate in STATUS_BY_FATE] * 2)
@hypothesis_settings(
    max_examples=20, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
async def test_one_event_per_key_at_a_time_and_in_order(
    hub: Hub, owner: Connection, consume: Any, plan: list[tuple[str, str]]
) -> None:
    await owner.execute("delete from public.event_queue")
    checker = OrderChecker(plan)
    await publish_plan(hub, plan)
    tasks = [asyncio.create_task(consume(hub, checker)) for _ in range(CONSUMERS)]
    tasks.append(asyncio.create_task(run_advance_chore(hub)))
    try:
        await wait_until(lambda: all_ended(owner), within=30)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    assert checker.violations == []
    rows = await owner.fetch("select (payload->>'n')::integer as n, status from public.event_queue")
    assert {row["n"]: row["status"] for row in rows} == {n: STATUS_BY_FATE[fate] for n, (_, fate) in enumerate(plan)}
    attempts_by_fate = {"done": 1, "retried": 3, "snoozed": 3, "dead": 1, "exhausted": 3, "cancelled": 1, "expired": 0}
    assert checker.attempts == Counter(
        {n: attempts_by_fate[fate] for n, (_, fate) in enumerate(plan) if attempts_by_fate[fate]}
    )
    assert await owner.fetchval("select count(*) from pabal.event_order") == 0


class TestTimes:
    async def claim(self, hub: Hub, limit: int = 10) -> list[ClaimedEvent]:
        async with hub.autocommit() as tx:
            return await LANE.claim(tx, limit, MINUTE, "tester", EventClaimFilter("minu_build"))

    async def now(self, owner: Connection) -> datetime:
        return await owner.fetchval("select pabal.now()")

    async def test_a_scheduled_event_is_claimed_at_its_time(self, hub: Hub, owner: Connection, travel: Travel) -> None:
        later = await publish_test_event(hub, "order.paid", deliver_at=await self.now(owner) + MINUTE)
        await travel(MINUTE - timedelta(seconds=5))
        assert await self.claim(hub) == []
        await travel(timedelta(seconds=5))

        [claimed] = await self.claim(hub)
        assert (claimed.id, claimed.attempt) == (later, 1)

    async def test_an_expired_event_is_not_claimed_and_is_cancelled(
        self, hub: Hub, owner: Connection, travel: Travel
    ) -> None:
        expiring = await publish_test_event(hub, "order.paid", expires_at=await self.now(owner) + MINUTE)
        kept = await publish_test_event(hub, "order.paid", expires_at=await self.now(owner) + 3 * MINUTE)
        await travel(2 * MINUTE)

        assert [claimed.id for claimed in await self.claim(hub)] == [kept]
        expired = await load_event(hub, expiring)
        assert (expired.status, expired.last_error) == ("cancelled", "expired")

    async def test_a_held_event_does_not_expire(self, hub: Hub, owner: Connection, travel: Travel) -> None:
        held = await publish_test_event(hub, "order.paid", expires_at=await self.now(owner) + MINUTE / 2)
        [claimed] = await self.claim(hub)
        await travel(MINUTE / 2)
        await hub.chores.run_due()
        assert (await load_event(hub, held)).status == "processing"

        async with hub.transaction() as tx:
            assert await settle_claimed_events(tx, "minu_build", {Receipt(claimed.id, claimed.lease): DONE}) != set()
        with pytest.raises(Conflict):
            async with hub.transaction() as tx:
                await cancel_event(tx, await load_event(hub, held), TESTER)

    async def test_a_scheduled_first_event_holds_its_key(self, hub: Hub, owner: Connection, travel: Travel) -> None:
        rows: list[UUID] = [
            await publish_test_event(hub, "order.paid", ordering_key="k", deliver_at=await self.now(owner) + MINUTE),
            await publish_test_event(hub, "order.paid", ordering_key="k", priority=1),
        ]
        assert await self.claim(hub) == []
        await travel(MINUTE)

        assert [claimed.id for claimed in await self.claim(hub)] == rows[:1]
