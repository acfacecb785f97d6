"""A migration that needs a table in use neither waits in front of other sessions nor gives up at once."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from pabal.core.errors import MigrationError
from pabal.db.migrate import apply_migrations
from support.clusters import Cluster, Connection, open_connection
from support.wait import wait_until

pytestmark = pytest.mark.anyio

FIRST, SECOND = "20250101000000", "20250102000000"
WAITING = "select exists (select from pg_locks where not granted and relation = 'public.busy'::regclass)"
READ = "select count(*) from public.busy"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A table, and a migration that changes it."""
    (tmp_path / "down").mkdir()
    for version, sql in (
        (FIRST, "create table if not exists public.busy (id int);"),
        (SECOND, "alter table public.busy add column name text;"),
    ):
        (tmp_path / f"{version}_busy.sql").write_text(sql)
        (tmp_path / "down" / f"{version}_busy.sql").write_text("select 1;")
    return tmp_path


async def is_migration_waiting(conn: Connection) -> bool:
    return await conn.fetchval(WAITING)


async def test_sessions_that_use_the_table_go_on_while_a_migration_waits_for_it(server: Cluster, folder: Path) -> None:
    url = await server.fresh_database()
    await apply_migrations(url, folder=folder, to=FIRST)
    async with open_connection(url) as holder, open_connection(url) as reader:
        transaction = holder.transaction()
        await transaction.start()
        await holder.fetchval(READ)
        migration = asyncio.create_task(
            apply_migrations(url, folder=folder, table_lock_timeout=timedelta(milliseconds=300))
        )
        await wait_until(lambda: is_migration_waiting(reader))
        async with asyncio.timeout(20):
            assert await reader.fetchval(READ) == 0, "while the first transaction still holds the table"
        await transaction.commit()
        applied = await migration

        assert [step.version for step in applied] == [SECOND]
        assert await reader.fetchval("select count(name) from public.busy") == 0


async def test_a_table_that_stays_in_use_ends_the_migration_with_a_clear_error(server: Cluster, folder: Path) -> None:
    url = await server.fresh_database()
    await apply_migrations(url, folder=folder, to=FIRST)
    async with open_connection(url) as holder, holder.transaction():
        await holder.fetchval(READ)
        with pytest.raises(MigrationError, match="another transaction holds a table that the migration needs"):
            await apply_migrations(
                url, folder=folder, lock_timeout=timedelta(), table_lock_timeout=timedelta(milliseconds=50)
            )

    assert [step.version for step in await apply_migrations(url, folder=folder)] == [SECOND]


async def test_a_long_migration_leaves_the_next_one_its_time_to_wait(server: Cluster, folder: Path) -> None:
    (folder / "20250101120000_long.sql").write_text("select pg_sleep(3.2);")
    (folder / "down" / "20250101120000_long.sql").write_text("select 1;")
    url = await server.fresh_database()
    await apply_migrations(url, folder=folder, to=FIRST)
    async with open_connection(url) as holder, open_connection(url) as reader:
        transaction = holder.transaction()
        await transaction.start()
        await holder.fetchval(READ)
        migration = asyncio.create_task(
            apply_migrations(
                url,
                folder=folder,
                lock_timeout=timedelta(seconds=3),
                table_lock_timeout=timedelta(milliseconds=500),
            )
        )
        await wait_until(lambda: is_migration_waiting(reader))
        await wait_until(lambda: is_migration_over(reader))
        await transaction.commit()

        assert [step.version for step in await migration] == ["20250101120000", SECOND]


async def is_migration_over(conn: Connection) -> bool:
    """Whether the migration does not wait for the table any more."""
    return not await is_migration_waiting(conn)
