"""Idempotency keys: one event per key and source for 24 hours, however it is published."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import pytest

from pabal.core.errors import Conflict, Invalid
from pabal.core.ids import new_id
from pabal.events.publish.publish import EventDraft, PublishResult, publish_event_batch
from pabal.hub import DatabaseUrls, Hub
from support.clusters import Connection, open_connection
from support.lane_under_test import Travel
from support.wait import wait_until

pytestmark = pytest.mark.anyio

DRAFT = EventDraft(source="minu_find", event_type="order.paid", target="minu_build", idempotency_key="k")
INSERT = """
    insert into public.event_queue (id, event_type, source_service, target_service, idempotency_key)
    values ($1, 'order.paid', 'minu_find', 'minu_build', $2)
"""
PUBLISH = "select pabal.publish('minu_find', 'order.paid', target => 'minu_build', idempotency_key => $1)"


@pytest.fixture
async def other(database_urls: DatabaseUrls) -> AsyncGenerator[Connection]:
    """A second connection of the owner."""
    async with open_connection(database_urls.direct or database_urls.main) as conn:
        yield conn


async def publish_http(hub: Hub, *drafts: EventDraft) -> list[Any]:
    return await publish_event_batch(hub.db, drafts)


async def publish_one(hub: Hub, draft: EventDraft = DRAFT) -> UUID:
    [result] = await publish_http(hub, draft)
    assert isinstance(result, PublishResult)
    return result.id


async def insert_event(conn: Connection, key: str = "k") -> UUID:
    event_id = new_id()
    await conn.execute(INSERT, event_id, key)
    return event_id


async def count_waiting(owner: Connection, number: int) -> bool:
    return await owner.fetchval("select count(*) from pg_locks where not granted") == number


@pytest.mark.parametrize("way", ["http", "sql", "insert"])
async def test_a_key_ends_after_24_hours_before_any_chore_has_run(
    hub: Hub, owner: Connection, travel: Travel, way: str
) -> None:
    async def publish() -> UUID:
        match way:
            case "http":
                return await publish_one(hub)
            case "sql":
                return await owner.fetchval(PUBLISH, "k")
            case _:
                return await insert_event(owner)

    first = await publish()
    await travel(timedelta(hours=24, minutes=-1))
    if way == "insert":
        with pytest.raises(asyncpg.UniqueViolationError) as error:
            await publish()
        assert error.value.constraint_name == "idx_event_queue_idempotency_key"
    else:
        assert await publish() == first

    await travel(timedelta(minutes=1))
    second = await publish()

    assert second != first
    assert await owner.fetchval("select array_agg(id order by seq) from public.event_queue") == [first, second]
    assert await owner.fetchval("select array_agg(event_id) from pabal.event_keys") == [second]


@pytest.mark.parametrize(("age", "is_new"), [("24 hours", True), ("23:59:59.999999", False)])
async def test_the_24_hours_are_exact(owner: Connection, age: str, is_new: bool) -> None:
    async with owner.transaction():  # time stands still in a transaction
        first = await owner.fetchval(PUBLISH, "k")
        await owner.execute("update pabal.event_keys set created_at = pabal.now() - $1::text::interval", age)
        assert (await owner.fetchval(PUBLISH, "k") != first) is is_new


async def travel_to_midnight(owner: Connection, travel: Travel) -> None:
    """Half a minute before it, so that a transaction that begins now is of the day before."""
    await travel(
        await owner.fetchval("select date_trunc('day', pabal.now()) + interval '1 day -30 seconds' - pabal.now()")
    )


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("way", ["http", "sql", "insert"])
async def test_a_key_in_a_transaction_open_across_midnight_is_waited_for(
    hub: Hub, owner: Connection, other: Connection, travel: Travel, way: str, end: str
) -> None:
    await travel_to_midnight(owner, travel)
    await other.execute("begin")
    before = await other.fetchval(PUBLISH, "k")
    await travel(timedelta(minutes=1))

    match way:
        case "http":
            after = asyncio.create_task(publish_one(hub))
        case "sql":
            after = asyncio.create_task(owner.fetchval(PUBLISH, "k"))
        case _:
            after = asyncio.create_task(insert_event(owner))
    await wait_until(lambda: count_waiting(other, 1))
    await other.execute(end)

    if end == "rollback":
        assert await after != before
    elif way == "insert":
        with pytest.raises(asyncpg.UniqueViolationError):
            await after
    else:
        assert await after == before
    assert await other.fetchval("select count(*) from public.event_queue") == 1


async def test_a_transaction_from_before_midnight_finds_a_key_of_the_next_day(
    hub: Hub, owner: Connection, other: Connection, travel: Travel
) -> None:
    await travel_to_midnight(owner, travel)
    async with other.transaction():
        await other.fetchval("select pabal.now()")
        await travel(timedelta(minutes=1))
        first = await publish_one(hub)
        assert await other.fetchval(PUBLISH, "k") == first

    await travel(timedelta(hours=24, minutes=-2))
    assert await publish_one(hub) == first


async def test_concurrent_publishers_of_an_expired_key_publish_one_event(
    hub: Hub, owner: Connection, other: Connection, travel: Travel
) -> None:
    first = await publish_one(hub)
    await travel(timedelta(hours=25))
    await other.execute("begin")
    second = await other.fetchval(PUBLISH, "k")
    waiting = asyncio.gather(publish_one(hub), owner.fetchval(PUBLISH, "k"))
    await wait_until(lambda: count_waiting(other, 2))
    await other.execute("commit")

    assert set(await waiting) == {second}
    assert second != first


async def test_a_repeated_key_does_not_wait_for_an_open_transaction_that_repeats_it(
    hub: Hub, owner: Connection, other: Connection
) -> None:
    first = await publish_one(hub)
    async with other.transaction():
        assert await other.fetchval(PUBLISH, "k") == first
        async with asyncio.timeout(60):
            assert await publish_one(hub) == first
            assert await owner.fetchval(PUBLISH, "k") == first


async def test_the_first_of_a_batch_with_one_key_is_published(hub: Hub, travel: Travel) -> None:
    different = msgspec.structs.replace(DRAFT, priority=1)
    for _ in range(2):  # a new key, then an expired one
        first, same, other_content = await publish_http(hub, DRAFT, DRAFT, different)
        assert (first.repeated, same.repeated, same.id) == (False, True, first.id)
        assert isinstance(other_content, Conflict)
        await travel(timedelta(hours=25))


async def test_a_repeat_that_postgresql_cannot_parse_fails_alone(hub: Hub, owner: Connection) -> None:
    """It is noticed before the other events of the batch are committed, so these are recorded once."""
    await publish_one(hub)
    unreadable = msgspec.structs.replace(DRAFT, payload=b'{"n": 1e400000}')
    plain = msgspec.structs.replace(DRAFT, idempotency_key=None, event_type="order.sent")

    results = await publish_http(hub, plain, unreadable, plain)

    assert [type(result) for result in results] == [PublishResult, Invalid, PublishResult]
    assert await owner.fetchval("select count(*) from public.event_queue where event_type = 'order.sent'") == 2


async def test_a_key_of_a_plain_insert_has_no_known_content(hub: Hub, owner: Connection) -> None:
    await insert_event(owner)
    [result] = await publish_http(hub, DRAFT)
    assert isinstance(result, Conflict)


async def test_a_key_is_free_after_its_event_is_deleted_or_loses_it(hub: Hub, owner: Connection) -> None:
    ids = [await publish_one(hub)]
    for statement in (
        "delete from public.event_queue",
        "update public.event_queue set idempotency_key = 'other'",
        "update public.event_queue set source_service = 'minu_keep' where idempotency_key = 'k'",
        "update public.event_queue set idempotency_key = null where source_service = 'minu_find'",
        "truncate public.event_queue cascade",
    ):
        await owner.execute(statement)
        ids.append(await publish_one(hub))
    assert len(set(ids)) == 6


async def test_a_changed_key_must_be_free(hub: Hub, owner: Connection, travel: Travel) -> None:
    await publish_one(hub)
    second = await insert_event(owner, "second")
    change = "update public.event_queue set idempotency_key = 'k' where id = $1"

    with pytest.raises(asyncpg.UniqueViolationError, match="idx_event_queue_idempotency_key"):
        await owner.execute(change, second)
    await travel(timedelta(hours=25))
    await owner.execute(change, second)

    assert await owner.fetchval("select event_id from pabal.event_keys where idempotency_key = 'k'") == second


async def test_expiry_deletes_the_key_and_leaves_the_event_alone(hub: Hub, owner: Connection, travel: Travel) -> None:
    await publish_one(hub)
    row_query = (
        "select ctid::text, xmin::text, idempotency_key from public.event_queue where target_service = 'minu_build'"
    )
    before = await owner.fetchrow(row_query)
    await travel(timedelta(hours=23))
    await insert_event(owner, "young")
    await travel(timedelta(hours=1))

    await hub.chores.run_due()

    assert await owner.fetchval("select array_agg(idempotency_key) from pabal.event_keys") == ["young"]
    assert await owner.fetchrow(f"{row_query} and idempotency_key = 'k'") == before


async def test_a_deadlock_with_another_transaction_is_retried(hub: Hub, owner: Connection, other: Connection) -> None:
    """Each holds the key that the other waits for. PostgreSQL fails the hub's statement."""
    await owner.execute("""
        create function public.waits() returns trigger language plpgsql as
            'begin perform pg_advisory_xact_lock_shared(1); return new; end';
        create trigger waits before insert on pabal.event_keys for each row
            when (new.idempotency_key = 'b' and current_setting('application_name') = 'pabal')
            execute function public.waits();
        select pg_advisory_lock(1);
    """)
    await other.execute("set deadlock_timeout = '1h'")
    await other.execute("begin")
    b = await other.fetchval(PUBLISH, "b")
    drafts = [msgspec.structs.replace(DRAFT, idempotency_key=key) for key in "ab"]
    batch = asyncio.create_task(publish_http(hub, *drafts))
    await wait_until(lambda: count_waiting(owner, 1))
    second = asyncio.create_task(other.fetchval(PUBLISH, "a"))
    await wait_until(lambda: count_waiting(owner, 2))

    await owner.execute("select pg_advisory_unlock(1)")
    a = await second
    await other.execute("commit")

    assert [(result.id, result.repeated) for result in await batch] == [(a, True), (b, True)]


REPLACE_KEY = "update pabal.event_keys set event_id = $1, created_at = pabal.now() where idempotency_key = 'k'"


@pytest.mark.parametrize("way", ["delete", "insert"])
async def test_an_expired_key_that_is_replaced_meanwhile_is_kept(
    hub: Hub, owner: Connection, other: Connection, travel: Travel, way: str
) -> None:
    first, second = await publish_one(hub), new_id()
    await travel(timedelta(hours=25))
    await other.execute("begin")
    await other.execute(REPLACE_KEY, second)
    if way == "delete":
        waiting = asyncio.create_task(owner.execute("delete from public.event_queue where id = $1", first))
    else:
        waiting = asyncio.create_task(owner.execute(INSERT, new_id(), "k"))
    await wait_until(lambda: count_waiting(other, 1))
    await other.execute("commit")

    [error] = await asyncio.gather(waiting, return_exceptions=True)

    assert isinstance(error, asyncpg.UniqueViolationError) == (way == "insert")
    assert await owner.fetchval("select array_agg(event_id) from pabal.event_keys") == [second]
