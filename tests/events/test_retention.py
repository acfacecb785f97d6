"""Events are deleted some time after their end, in passes over the oldest events."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import timedelta
from uuid import UUID

import pytest

from pabal.db.queries import Query
from pabal.db.tx import Tx
from pabal.events.consume.retention import EventRetention
from pabal.hub import DatabaseUrls, Hub
from pabal.maintenance import build_chores
from pabal.queue.chores import ChoreRunner
from support.clusters import Connection, open_connection

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]

INSERT_EVENTS = """
insert into public.event_queue (id, event_type, source_service, target_service, status, created_at, processed_at)
select pabal.uuid7(), 'order.paid', 'minu_find', 'minu_build', $2, pabal.now() - $3::interval + n * $4::interval,
       case when $2 = 'completed' then pabal.now() - $3::interval + n * $4::interval end
from generate_series(1, $1::integer) n
returning id
"""
ROWS_READ = Query(
    "rows_read",
    "select seq_tup_read + idx_tup_fetch from pg_stat_xact_user_tables where relid = 'public.event_queue'::regclass",
    (),
    "test_retention",
)
BATCH = 20
MANY = 3000


@pytest.fixture
async def other(database_urls: DatabaseUrls) -> AsyncGenerator[Connection]:
    """A second connection of the owner."""
    async with open_connection(database_urls.direct or database_urls.main) as conn:
        yield conn


async def insert_events(
    conn: Connection, count: int, status: str, days: int, step: timedelta = timedelta(seconds=1)
) -> list[UUID]:
    rows = await conn.fetch(INSERT_EVENTS, count, status, timedelta(days=days), step)
    return [row["id"] for row in rows]


async def remaining(conn: Connection) -> set[UUID]:
    return {row["id"] for row in await conn.fetch("select id from public.event_queue")}


def find_purge(hub: Hub) -> Callable[[Tx, int], Awaitable[int]]:
    [chore] = [chore for chore in build_chores(hub.settings, hub.relay.metrics) if chore.name == "purge events"]
    return chore.run


async def test_old_events_that_have_not_ended_are_read_once_and_not_by_every_batch(hub: Hub, owner: Connection) -> None:
    await insert_events(owner, MANY, "pending", 60)
    await insert_events(owner, 3 * BATCH, "completed", 50)
    await owner.execute("vacuum analyze public.event_queue")
    purge = find_purge(hub)

    async with hub.transaction() as tx:
        assert await purge(tx, BATCH) == BATCH
        first = await tx.value(ROWS_READ)
        assert await purge(tx, BATCH) == BATCH
        second = await tx.value(ROWS_READ) - first

    assert second < 10 * BATCH


async def test_a_run_deletes_every_event_that_ended_before_the_retention(hub: Hub, owner: Connection) -> None:
    kept = {
        *await insert_events(owner, 7, "pending", 60),
        *await insert_events(owner, 7, "completed", 29),
    }
    for days in (31, 33, 45):
        await insert_events(owner, BATCH, "completed", days)
        kept |= {*await insert_events(owner, 7, "pending", days)}
    chores = [chore for chore in build_chores(hub.settings, hub.relay.metrics) if chore.name == "purge events"]

    await ChoreRunner(hub.db, chores, batch=7).run_due()

    assert await remaining(owner) == kept


async def test_a_batch_may_end_between_events_of_one_transaction(hub: Hub, owner: Connection) -> None:
    """They have one created_at."""
    kept = await insert_events(owner, 25, "pending", 40, timedelta())
    await insert_events(owner, 25, "completed", 40, timedelta())
    await owner.execute("update public.event_queue set created_at = (select min(created_at) from public.event_queue)")
    retention = EventRetention(days=30)

    async with hub.transaction() as tx:
        assert [await retention.delete_batch(tx, 10) for _ in range(3)] == [10, 10, 5]

    assert await remaining(owner) == {*kept}


async def test_a_batch_deletes_no_more_than_its_size(hub: Hub, owner: Connection) -> None:
    await insert_events(owner, 10, "completed", 40)
    retention = EventRetention(days=30)

    async with hub.transaction() as tx:
        assert [await retention.delete_batch(tx, 4) for _ in range(4)] == [4, 4, 2, 0]


async def test_the_next_pass_deletes_what_ended_since(hub: Hub, owner: Connection, travel: Travel) -> None:
    [straggler] = await insert_events(owner, 1, "pending", 40)
    await insert_events(owner, 1, "completed", 35)
    retention = EventRetention(days=30)
    async with hub.transaction() as tx:
        assert await retention.delete_batch(tx, BATCH) == 1
    await owner.execute("update public.event_queue set status = 'completed' where id = $1", straggler)
    await travel(timedelta(days=31))

    async with hub.transaction() as tx:
        assert await retention.delete_batch(tx, BATCH) == 1


async def test_a_locked_event_is_left_for_the_next_pass(hub: Hub, owner: Connection, other: Connection) -> None:
    [locked, *_] = await insert_events(owner, 3, "completed", 40)
    retention = EventRetention(days=30)

    async with other.transaction():
        await other.execute("select from public.event_queue where id = $1 for update", locked)
        async with hub.transaction() as tx:
            assert await retention.delete_batch(tx, BATCH) == 2
    assert await remaining(owner) == {locked}

    async with hub.transaction() as tx:
        assert await retention.delete_batch(tx, BATCH) == 1
