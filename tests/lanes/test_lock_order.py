"""Statements of one lane lock rows in a common order, so they do not deadlock.

Nothing is retried here: a deadlock that PostgreSQL ends fails the test.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import asyncpg
import pytest

from pabal.db.errors import RetryableError
from pabal.events.repair import advance_ordered_events, repair_event_tables
from pabal.hub import DatabaseUrls, Hub
from pabal.queue.lane import Capability
from pabal.queue.outcome import DONE, Dead, Done, Outcome, Retry, Snooze
from support.lane_under_test import MINUTE, Events, LaneUnderTest, Notifications, Relay

if TYPE_CHECKING:
    Pool = asyncpg.Pool[asyncpg.Record]

pytestmark = pytest.mark.anyio

ROWS, AT_ONCE, ROUNDS = 300, 12, 60
AGAIN = timedelta()


class Meddling(NamedTuple):
    """Plain SQL that changes a row without knowing lanes, and the query for the finished rows."""

    move: str
    touch: str
    delete: str
    done: str


MEDDLING: dict[type[LaneUnderTest], Meddling] = {
    Events: Meddling(
        "update public.event_queue set priority = 1 + priority % 10 where id = $1",
        "update public.event_queue set correlation_id = 'seen' where id = $1",
        "delete from public.event_queue where id = $1",
        "select id from public.event_queue where status = 'completed'",
    ),
    Notifications: Meddling(
        "update notification.requests set priority = case priority when 5 then 3 else 5 end where id = $1",
        "update notification.requests set correlation_id = 'seen' where id = $1",
        "delete from notification.requests where id = $1",
        "select id from notification.requests where state = 'sent'",
    ),
    Relay: Meddling(
        "update public.inbound_messages set expires_at = expires_at + interval '1 second' where id = $1",
        "update public.inbound_messages set answer = '{}' where id = $1",
        "delete from public.inbound_messages where id = $1",
        "select id from public.inbound_messages where status = 'ACKED'",
    ),
}


@pytest.fixture
async def strangers(database_urls: DatabaseUrls) -> "AsyncGenerator[Pool]":
    async with asyncpg.create_pool(database_urls.direct, min_size=1, max_size=4) as pool:
        yield pool


class Crowd:
    """All statements of one lane at once, on the same few rows."""

    def __init__(self, lane: LaneUnderTest, hub: Hub, strangers: "Pool") -> None:
        self.lane = lane
        self.hub = hub
        self.strangers = strangers
        self.meddling = MEDDLING[type(lane)]
        self.chance = random.Random(7)
        self.rows: list[UUID] = []
        self.claimed: list[Any] = []
        """Every claimed item; late holders try to settle it too."""
        self.done: list[UUID] = []
        self.deleted: set[UUID] = set()

    def some(self, many: int) -> list[Any]:
        """Some recently claimed items in random order, each with one of the leases it had."""
        recent = self.claimed[-3 * many :]
        return [*{item.id: item for item in self.chance.sample(recent, min(many, len(recent)))}.values()]

    def verdict(self) -> Outcome:
        kinds: list[Outcome] = [DONE, Snooze("later", AGAIN)]
        if Capability.RETRY in self.lane.can:
            kinds += [Retry("again", AGAIN), Dead("never")]
        return self.chance.choice(kinds)

    async def put(self) -> None:
        if len(self.rows) < ROWS:
            keyed = Capability.ORDER_BY_KEY in self.lane.can and self.chance.random() < 0.5
            how = {"ordering_key": self.chance.choice("abc")} if keyed else {}
            async with self.strangers.acquire() as stranger:
                new = await stranger.fetch(self.lane.insert(**how), self.chance.randint(1, 8))
            self.rows += [row["id"] for row in new]

    async def claim(self) -> None:
        try:
            self.claimed += await self.lane.claim(limit=self.chance.randint(1, 30))
        except RetryableError:  # two claims of one key at the same time: the second takes nothing
            return

    async def settle(self) -> None:
        verdicts = [(item, self.verdict()) for item in self.some(12)]
        settled = await self.lane.settle_all(verdicts)
        self.done += [item.id for item, outcome in verdicts if isinstance(outcome, Done) and item.id in settled]

    async def extend(self) -> None:
        await self.lane.extend(self.some(20), MINUTE)

    async def release(self) -> None:
        await self.lane.release(self.some(5))

    async def keep_house(self) -> None:
        await self.lane.expire()
        await self.lane.purge(30)
        await self.do(self.lane.lane.revive)
        if isinstance(self.lane, Events):
            await self.do(advance_ordered_events)
            assert await self.do(repair_event_tables) == 0  # no statement here breaks the tables

    async def do(self, chore: Callable[..., Awaitable[int]]) -> int:
        async with self.hub.transaction() as tx:
            return await chore(tx, 5000)

    async def meddle(self) -> None:
        if not self.rows:
            return
        row = self.chance.choice(self.rows[-100:])
        how = self.chance.choices((self.lane.cancel_sql, *self.meddling[:3]), weights=(2, 3, 6, 1))[0]
        async with self.strangers.acquire() as stranger:
            if await stranger.execute(how, row) == "DELETE 1":
                self.deleted.add(row)

    async def live(self) -> None:
        habits = (self.put, self.claim, self.settle, self.extend, self.release, self.keep_house, self.meddle)
        for _ in range(ROUNDS):
            [habit] = self.chance.choices(habits, weights=(3, 4, 6, 4, 1, 1, 8))
            await habit()

    async def go_home(self) -> None:
        """Held items become due again, and one last holder finishes all of them."""
        await self.lane.travel(minutes=2)
        idle = 0
        while idle < 2:  # a chore makes the last ordered event due, so one empty claim is not the end
            if isinstance(self.lane, Events):
                await self.do(advance_ordered_events)
            found = await self.lane.claim(limit=100)
            self.done += await self.lane.settle_all([(item, DONE) for item in found])
            idle = 0 if found else idle + 1


async def test_concurrent_statements_do_not_deadlock_and_every_row_ends_once(
    lane: LaneUnderTest, hub: Hub, strangers: "Pool"
) -> None:
    crowd = Crowd(lane, hub, strangers)

    async with asyncio.timeout(60):
        async with asyncio.TaskGroup() as tasks:
            for _ in range(AT_ONCE):
                tasks.create_task(crowd.live())
        await crowd.go_home()

    assert await lane.owner.fetchval(lane.open_sql) == 0
    assert len(crowd.done) == len({*crowd.done})
    assert {*crowd.done} - crowd.deleted == {row["id"] for row in await lane.owner.fetch(crowd.meddling.done)}
    if isinstance(lane, Events):
        assert await crowd.do(repair_event_tables) == 0
        left = await lane.owner.fetchrow(
            "select (select count(*) from pabal.event_due), (select count(*) from pabal.event_order),"
            " (select coalesce(sum(abs(held)), 0) from pabal.event_leases)"
        )
        assert left is not None
        assert tuple(left) == (0, 0, 0)
