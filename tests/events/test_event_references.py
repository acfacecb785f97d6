"""Dead letters and deliveries refer to events without foreign keys; triggers keep what foreign keys promise."""

import asyncio
from collections.abc import AsyncGenerator
from uuid import UUID

import asyncpg
import pytest

from pabal.core.ids import new_id
from pabal.hub import DatabaseUrls
from support.clusters import Connection, open_connection
from support.wait import wait_until

pytestmark = pytest.mark.anyio

INSERT_EVENT = """
    insert into public.event_queue (id, event_type, source_service, target_service, parent_id, status, processed_at)
    values ($1, 'order.paid', 'minu_find', 'minu_build', $2, 'completed', pabal.now() - interval '40 days')
"""
INSERT_LETTER = """
    insert into public.dead_letter_queue
      (id, event_id, original_event_id, origin_id, original_event_type, original_source_service, original_payload,
       error_message, total_retry_count)
    values ($1, $2, $3, $3, 'order.paid', 'minu_find', '{}', 'bang', 3)
"""
CONSTRAINTS = {"letter": "dead_letter_queue_event_id_fkey", "delivery": "event_queue_parent_id_fkey"}
REFERENCES = {
    "letter": "select event_id from public.dead_letter_queue where id = $1",
    "delivery": "select parent_id from public.event_queue where id = $1",
}
referrer = pytest.mark.parametrize("referrer", ["letter", "delivery"])


@pytest.fixture
async def other(database_urls: DatabaseUrls) -> AsyncGenerator[Connection]:
    """A second connection of the owner."""
    async with open_connection(database_urls.direct or database_urls.main) as conn:
        yield conn


async def insert_event(conn: Connection) -> UUID:
    event_id = new_id()
    await conn.execute(INSERT_EVENT, event_id, None)
    return event_id


async def refer(conn: Connection, referrer: str, event: UUID | None) -> UUID:
    """Insert a dead letter or a delivery of the event."""
    row_id = new_id()
    if referrer == "letter":
        await conn.execute(INSERT_LETTER, row_id, event, event or new_id())
    else:
        await conn.execute(INSERT_EVENT, row_id, event)
    return row_id


async def change_reference(conn: Connection, referrer: str, row_id: UUID, event: UUID) -> None:
    table, column = ("dead_letter_queue", "event_id") if referrer == "letter" else ("event_queue", "parent_id")
    await conn.execute(f"update public.{table} set {column} = $2 where id = $1", row_id, event)


async def is_blocked(owner: Connection) -> bool:
    return await owner.fetchval("select count(*) from pg_locks where not granted") == 1


async def test_no_foreign_key_refers_to_events(owner: Connection) -> None:
    """A referenced partition can neither be detached nor dropped."""
    assert await owner.fetch("select conname from pg_constraint where confrelid = 'public.event_queue'::regclass") == []


@referrer
@pytest.mark.parametrize(
    "statement", ["delete from public.event_queue where id = $1", "select public.cleanup_old_events(30), $1::uuid"]
)
async def test_a_reference_to_a_deleted_event_becomes_null(owner: Connection, referrer: str, statement: str) -> None:
    event, kept = await insert_event(owner), await insert_event(owner)
    await owner.execute("update public.event_queue set processed_at = pabal.now() where id = $1", kept)
    rows = [await refer(owner, referrer, event) for event in (event, kept)]
    await owner.execute("update public.event_queue set processed_at = pabal.now() where id = any($1::uuid[])", rows)

    await owner.execute(statement, event)

    assert [await owner.fetchval(REFERENCES[referrer], row) for row in rows] == [None, kept]


@referrer
async def test_a_reference_to_an_unknown_event_is_refused(owner: Connection, referrer: str) -> None:
    with pytest.raises(asyncpg.ForeignKeyViolationError) as error:
        await refer(owner, referrer, new_id())
    assert error.value.constraint_name == CONSTRAINTS[referrer]

    row = await refer(owner, referrer, None)
    with pytest.raises(asyncpg.ForeignKeyViolationError) as error:
        await change_reference(owner, referrer, row, new_id())
    assert error.value.constraint_name == CONSTRAINTS[referrer]
    event = await insert_event(owner)
    await change_reference(owner, referrer, row, event)
    assert await owner.fetchval(REFERENCES[referrer], row) == event


@referrer
async def test_an_event_is_not_deleted_under_a_new_reference(
    owner: Connection, other: Connection, referrer: str
) -> None:
    event = await insert_event(owner)
    async with other.transaction():
        row = await refer(other, referrer, event)
        deletion = asyncio.create_task(owner.execute("delete from public.event_queue where id = $1", event))
        await wait_until(lambda: is_blocked(other))
    await deletion

    assert await owner.fetchval(f"select count(*) from ({REFERENCES[referrer]}) r", row) == 1
    assert await owner.fetchval(REFERENCES[referrer], row) is None


@referrer
@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_reference_waits_for_the_deletion_of_its_event(
    owner: Connection, other: Connection, referrer: str, end: str
) -> None:
    event = await insert_event(owner)
    await other.execute("begin")
    await other.execute("delete from public.event_queue where id = $1", event)
    reference = asyncio.create_task(refer(owner, referrer, event))
    await wait_until(lambda: is_blocked(other))
    await other.execute(end)

    if end == "commit":
        with pytest.raises(asyncpg.ForeignKeyViolationError):
            await reference
    else:
        assert await owner.fetchval(REFERENCES[referrer], await reference) == event


async def test_the_id_of_an_event_does_not_change(owner: Connection) -> None:
    event = await insert_event(owner)
    with pytest.raises(asyncpg.ForeignKeyViolationError, match=r"^id: "):
        await owner.execute("update public.event_queue set id = $2 where id = $1", event, new_id())
    await owner.execute("update public.event_queue set id = id where id = $1", event)


async def test_truncated_events_leave_their_dead_letters_and_nothing_to_claim(owner: Connection) -> None:
    letter = await refer(owner, "letter", await insert_event(owner))
    await owner.execute("""
        insert into public.event_queue (event_type, source_service, target_service, ordering_key)
        values ('order.paid', 'minu_find', 'minu_build', 'k')
    """)

    await owner.execute("truncate public.event_queue")

    assert (
        await owner.fetchval("select (select count(*) from pabal.event_due) + (select count(*) from pabal.event_order)")
        == 0
    )
    assert await owner.fetchval("select event_id is null from public.dead_letter_queue where id = $1", letter)
