"""Every migration can be reverted, and objects that existed before stay unchanged."""

from pathlib import Path

import pytest

from pabal.db import migrate
from pabal.db.migrate import apply_migrations, revert_migrations
from support.catalog import snapshot
from support.clusters import Cluster, open_connection

pytestmark = pytest.mark.anyio

SUPABASE = Path(__file__).with_name("seeds") / "before.sql"


async def test_each_rollback_undoes_exactly_its_file(server: Cluster) -> None:
    url = await server.fresh_database()
    async with open_connection(url) as conn:
        before = {"": await snapshot(conn)}
        versions = [migration.version for migration in migrate.load_migrations()]
        for version in versions:
            await apply_migrations(url, to=version)
            before[version] = await snapshot(conn)

        for version, previous in zip(reversed(versions), reversed(["", *versions[:-1]]), strict=True):
            [reverted] = await revert_migrations(url, to=previous or None)
            assert reverted.version == version
            assert await snapshot(conn) == before[previous], f"{reverted.file_name} left objects behind"

        await apply_migrations(url)
        assert await snapshot(conn) == before[versions[-1]]


async def test_objects_of_supabase_are_neither_altered_nor_dropped(server: Cluster) -> None:
    url = await server.fresh_database()
    async with open_connection(url) as conn:
        await conn.execute(SUPABASE.read_text("utf-8"))
        await conn.execute("create schema identity; create table identity.users (id uuid primary key, discord_id text)")
        before = await snapshot(conn)

        await apply_migrations(url)
        assert before <= await snapshot(conn)
        await revert_migrations(url)
        assert await snapshot(conn) == before


async def test_tables_with_rows_can_be_reverted(server: Cluster) -> None:
    url = await server.fresh_database()
    async with open_connection(url) as conn:
        before = await snapshot(conn)
        await apply_migrations(url, settings={"pabal.sample_data": "on"})
        assert await conn.fetchval("select count(*) from public.event_queue") == 3
        await conn.execute("insert into pabal.audit_log (actor, action) values ('operator', 'something.done')")

        await revert_migrations(url)

        assert await snapshot(conn) == before


async def test_only_accounts_of_sessions_with_the_old_default_get_a_higher_rate_limit(server: Cluster) -> None:
    url = await server.fresh_database()
    await apply_migrations(url, to="20260101110000")
    async with open_connection(url) as conn:
        await conn.execute(
            "insert into public.accounts (openclaw_user_id, rate_limit_per_minute) "
            "values ('session:a', 60), ('session:b', 61), ('session:c', null), ('mina', 60)"
        )
        await apply_migrations(url)
        rows = await conn.fetch("select openclaw_user_id as name, rate_limit_per_minute as rate from public.accounts")

    assert {row["name"]: row["rate"] for row in rows} == {
        "session:a": 600,
        "session:b": 61,
        "session:c": None,
        "mina": 60,
    }


async def test_sample_data_is_inserted_only_on_request(server: Cluster) -> None:
    url = await server.fresh_database()
    async with open_connection(url) as conn:
        await apply_migrations(url, to="20251124100007")
        assert await conn.fetchval("select count(*) from public.event_queue") == 0

        await revert_migrations(url, to="20251124100006")
        await apply_migrations(url, to="20251124100007", settings={"pabal.sample_data": "on"})

        assert await conn.fetchval("select count(*) from public.event_queue") == 3
        assert await conn.fetchval("select count(*) from public.dead_letter_queue") == 1
