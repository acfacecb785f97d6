"""Idempotency keys move from the event table to their own, foreign keys to events end, and back."""

from uuid import UUID

import asyncpg
import pytest

from pabal.db.migrate import apply_migrations, revert_migrations
from support.clusters import Cluster, Connection, open_connection

pytestmark = pytest.mark.anyio

BEFORE, MIGRATION, REFERENCES = "20260101191000", "20260102030000", "20260102031000"
PUBLISH = "select pabal.publish('minu_find', 'order.paid', target => 'minu_build', idempotency_key => $1)"


async def insert_event(conn: Connection, key: str) -> None:
    await conn.execute(
        "insert into public.event_queue (event_type, source_service, idempotency_key)"
        " values ('order.paid', 'minu_find', $1)",
        key,
    )


async def age(conn: Connection, event: UUID) -> None:
    await conn.execute("update public.event_queue set created_at = now() - interval '25 hours' where id = $1", event)


async def test_the_migration_moves_live_keys_and_back(server: Cluster) -> None:
    url = await server.fresh_database()
    await apply_migrations(url, to=BEFORE)
    async with open_connection(url) as conn:
        live, expired = await conn.fetchval(PUBLISH, "live"), await conn.fetchval(PUBLISH, "expired")
        await age(conn, expired)

        await apply_migrations(url, to=MIGRATION)
        assert await conn.fetchval(PUBLISH, "live") == live
        again = await conn.fetchval(PUBLISH, "expired")
        assert again != expired

        await revert_migrations(url, to=BEFORE)
        assert [await conn.fetchval(PUBLISH, key) for key in ("live", "expired")] == [live, again]
        with pytest.raises(asyncpg.UniqueViolationError, match="idx_event_queue_idempotency_key"):
            await insert_event(conn, "live")
        keys_query = "select id, idempotency_key from public.event_queue order by seq"
        assert [tuple(row) for row in await conn.fetch(keys_query)] == [
            (live, "live"),
            (expired, None),
            (again, "expired"),
        ]


async def test_references_and_the_order_survive_the_end_of_the_foreign_keys(server: Cluster) -> None:
    url = await server.fresh_database()
    await apply_migrations(url, to=MIGRATION)
    async with open_connection(url) as conn:
        event = await conn.fetchval(PUBLISH, "first")
        await conn.execute("update public.event_queue set status = 'failed' where id = $1", event)

        await apply_migrations(url, to=REFERENCES)
        await insert_event(conn, "second")
        await revert_migrations(url, to=MIGRATION)
        await insert_event(conn, "third")
        await apply_migrations(url, to=REFERENCES)

        keys_in_order = "select array_agg(idempotency_key order by seq) from public.event_queue"
        assert await conn.fetchval(keys_in_order) == ["first", "second", "third"]
        assert await conn.fetchval("select count(distinct seq) from public.event_queue") == 3
        assert await conn.fetchval("select event_id from public.dead_letter_queue") == event


async def test_references_that_dangle_do_not_stop_the_return_to_foreign_keys(server: Cluster) -> None:
    """A deletion without triggers leaves them, and one at repeatable read, if they are newer than its snapshot."""
    url = await server.fresh_database()
    await apply_migrations(url, to=REFERENCES)
    async with open_connection(url) as conn:
        event = await conn.fetchval(PUBLISH, "first")
        await conn.execute("update public.event_queue set status = 'failed' where id = $1", event)
        await conn.execute(
            "insert into public.event_queue (event_type, source_service, target_service, parent_id)"
            " values ('order.paid', 'minu_find', 'minu_build', $1)",
            event,
        )
        await conn.execute("set session_replication_role = replica")
        await conn.execute("delete from public.event_queue where id = $1", event)

        await revert_migrations(url, to=MIGRATION)

        assert await conn.fetchval("select array_agg(parent_id) from public.event_queue") == [None]
        assert await conn.fetchval("select array_agg(event_id) from public.dead_letter_queue") == [None]
