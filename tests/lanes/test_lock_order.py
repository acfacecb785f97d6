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
from pabal.events.repair.repair import advance_ordered_events, repair_event_tables
from pabal.hub import DatabaseUrls, Hub
from pabal.queue.lane import Capability
from pabal.queue.outcome import DONE, Dead, Done, Outcome, Retry, Snooze
from support.lane_under_test import MINUTE, Events, LaneUnderTest, Notifications, Relay

if TYPE_CHECKING:
    Pool = asyncpg.Pool[asyncpg.Record]

pytestmark = pytest.mark.anyio

ROWS, CONCURRENCY, ROUNDS = 300, 12, 60
NO_DELAY = timedelta()


class PlainSql(NamedTuple):
    """Statements of a client that does not use the lane's functions, and the query for the finished rows."""

    move: str
    touch: str
    delete: str
    done: str


PLAIN_SQL: dict[type[LaneUnderTest], PlainSql] = {
    Events: PlainSql(
        "update public.event_queue set priority = 1 + priority % 10 where id = $1",
        "update public.event_queue set correlation_id = 'seen' where id = $1",
        "delete from public.event_queue where id = $1",
        "select id from public.event_queue where status = 'completed'",
    ),
    Notifications: PlainSql(
        "update notification.requests set priority = case priority when 5 then 3 else 5 end where id = $1",
        "update notification.requests set correlation_id = 'seen' where id = $1",
        "delete from notification.requests where id = $1",
        "select id from notification.requests where state = 'sent'",
    ),
    Relay: PlainSql(
        "update public.inbound_messages set expires_at = expires_at + interval '1 second' where id = $1",
        "update public.inbound_messages set answer = '{}' where id = $1",
        "delete from public.inbound_messages where id = $1",
        "select id from public.inbound_messages where status = 'ACKED'",
    ),
}


@pytest.fixture
async def outside_pool(database_urls: DatabaseUrls) -> "AsyncGenerator[Pool]":
    async with asyncpg.create_pool(database_urls.direct, min_size=1, max_size=4) as pool:
        yield pool


class ConcurrentLane:
    """All statements of one lane at once, on the same few rows."""

    def __init__(self, lane: LaneUnderTest, hub: Hub, outside_pool: "Pool") -> None:
        self.lane = lane
        self.hub = hub
        self.outside_pool = outside_pool
        self.plain_sql = PLAIN_SQL[type(lane)]
        self.rng = random.Random(7)
        self.rows: list[UUID] = []
        self.claimed: list[Any] = []
        """Every claimed item; late holders try to settle it too."""
        self.done: list[UUID] = []
        self.deleted: set[UUID] = set()

    def sample(self, count: int) -> list[Any]:
        """Some recently claimed items in random order, each with one of the leases it had."""
        recent = self.claimed[-3 * count :]
        return [
            *{claimed_row.id: claimed_row for claimed_row in self.rng.sample(recent, min(count, len(recent)))}.values()
        ]

    def random_outcome(self) -> Outcome:
        kinds: list[Outcome] = [DONE, Snooze("later", NO_DELAY)]
        if Capability.RETRY in self.lane.capabilities:
            kinds += [Retry("again", NO_DELAY), Dead("never")]
        return self.rng.choice(kinds)

    async def put(self) -> None:
        if len(self.rows) < ROWS:
            with_key = Capability.ORDER_BY_KEY in self.lane.capabilities and self.rng.random() < 0.5
            options = {"ordering_key": self.rng.choice("abc")} if with_key else {}
            async with self.outside_pool.acquire() as connection:
                rows = await connection.fetch(self.lane.insert(**options), self.rng.randint(1, 8))
            self.rows += [row["id"] for row in rows]

    async def claim(self) -> None:
        try:
            self.claimed += await self.lane.claim(limit=self.rng.randint(1, 30))
        except RetryableError:  # two claims of one key at the same time: the second takes nothing
            return

    async def settle(self) -> None:
        outcomes = [(claimed_row, self.random_outcome()) for claimed_row in self.sample(12)]
        settled = await self.lane.settle_all(outcomes)
        self.done += [
            claimed_row.id
            for claimed_row, outcome in outcomes
            if isinstance(outcome, Done) and claimed_row.id in settled
        ]

    async def extend(self) -> None:
        await self.lane.extend(self.sample(20), MINUTE)

    async def release(self) -> None:
        await self.lane.release(self.sample(5))

    async def run_chores(self) -> None:
        await self.lane.expire()
        await self.lane.purge(30)
        await self.run_chore(self.lane.lane.revive)
        if isinstance(self.lane, Events):
            await self.run_chore(advance_ordered_events)
            assert await self.run_chore(repair_event_tables) == 0  # no statement here breaks the tables

    async def run_chore(self, chore: Callable[..., Awaitable[int]]) -> int:
        async with self.hub.transaction() as tx:
            return await chore(tx, 5000)

    async def run_plain_sql(self) -> None:
        if not self.rows:
            return
        row = self.rng.choice(self.rows[-100:])
        statement = self.rng.choices((self.lane.cancel_sql, *self.plain_sql[:3]), weights=(2, 3, 6, 1))[0]
        async with self.outside_pool.acquire() as connection:
            if await connection.execute(statement, row) == "DELETE 1":
                self.deleted.add(row)

    async def run(self) -> None:
        operations = (self.put, self.claim, self.settle, self.extend, self.release, self.run_chores, self.run_plain_sql)
        for _ in range(ROUNDS):
            [operation] = self.rng.choices(operations, weights=(3, 4, 6, 4, 1, 1, 8))
            await operation()

    async def finish(self) -> None:
        """Held items become due again, and one last holder finishes all of them."""
        await self.lane.travel(minutes=2)
        empty_claims = 0
        while empty_claims < 2:  # a chore makes the last ordered event due, so one empty claim is not the end
            if isinstance(self.lane, Events):
                await self.run_chore(advance_ordered_events)
            claimed = await self.lane.claim(limit=100)
            self.done += await self.lane.settle_all([(row, DONE) for row in claimed])
            empty_claims = 0 if claimed else empty_claims + 1


async def test_concurrent_statements_do_not_deadlock_and_every_row_ends_once(
    lane: LaneUnderTest, hub: Hub, outside_pool: "Pool"
) -> None:
    concurrent_lane = ConcurrentLane(lane, hub, outside_pool)

    async with asyncio.timeout(60):
        async with asyncio.TaskGroup() as tasks:
            for _ in range(CONCURRENCY):
                tasks.create_task(concurrent_lane.run())
        await concurrent_lane.finish()

    assert await lane.owner.fetchval(lane.open_sql) == 0
    assert len(concurrent_lane.done) == len({*concurrent_lane.done})
    assert {*concurrent_lane.done} - concurrent_lane.deleted == {
        row["id"] for row in await lane.owner.fetch(concurrent_lane.plain_sql.done)
    }
    if isinstance(lane, Events):
        assert await concurrent_lane.run_chore(repair_event_tables) == 0
        counts = await lane.owner.fetchrow(
            "select (select count(*) from pabal.event_due), (select count(*) from pabal.event_order),"
            " (select coalesce(sum(abs(held)), 0) from pabal.event_leases)"
        )
        assert counts is not None
        assert tuple(counts) == (0, 0, 0)
