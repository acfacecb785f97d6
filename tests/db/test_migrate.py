"""Migrations, with small test folders and with the shipped one."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pabal.core.errors import MigrationError, Unavailable
from pabal.db import migrate
from pabal.db.migrate import apply_migrations, read_migration_status, revert_migrations
from pabal.db.schema import AppliedMigration, check_migration_status, check_server_version, compare_migrations
from support.clusters import Cluster, open_connection

pytestmark = pytest.mark.anyio

FIRST, SECOND, THIRD = "20250101000000", "20250102000000", "20250103000000"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three small migrations."""
    (tmp_path / "down").mkdir()
    write(tmp_path, FIRST, "one", "create table if not exists public.one (id int);", "drop table public.one;")
    write(tmp_path, SECOND, "two", "create table if not exists public.two (id int);", "drop table public.two;")
    write(tmp_path, THIRD, "three", "create table if not exists public.three (id int);", "drop table public.three;")
    return tmp_path


def write(folder: Path, version: str, name: str, sql: str, down: str = "select 1;") -> None:
    (folder / f"{version}_{name}.sql").write_text(sql)
    (folder / "down" / f"{version}_{name}.sql").write_text(down)


async def tables(url: str) -> set[str]:
    async with open_connection(url) as conn:
        rows = await conn.fetch("select relname from pg_class where relnamespace = 'public'::regnamespace")
    return {row["relname"] for row in rows}


def versions(migrations: list[migrate.Migration]) -> list[str]:
    return [migration.version for migration in migrations]


async def test_up_applies_in_order_and_then_has_nothing_to_do(server: Cluster, folder: Path) -> None:
    url = await server.fresh_database()
    reported: list[str] = []

    applied = await apply_migrations(url, folder=folder, progress=lambda migration: reported.append(migration.version))

    assert versions(applied) == reported == [FIRST, SECOND, THIRD]
    assert await apply_migrations(url, folder=folder) == []
    assert await tables(url) == {"one", "two", "three"}


async def test_up_stops_at_a_version(server: Cluster, folder: Path) -> None:
    url = await server.fresh_database()

    assert versions(await apply_migrations(url, folder=folder, to=SECOND)) == [FIRST, SECOND]
    assert versions(await apply_migrations(url, folder=folder)) == [THIRD]


async def test_down_reverts_everything_newer_than_a_version(server: Cluster, folder: Path) -> None:
    url = await server.fresh_database()
    await apply_migrations(url, folder=folder)

    assert versions(await revert_migrations(url, folder=folder, to=FIRST)) == [THIRD, SECOND]
    assert await tables(url) == {"one"}
    assert versions(await revert_migrations(url, folder=folder)) == [FIRST]
    assert await tables(url) == set()
    assert (await read_migration_status(url, folder=folder)).applied == ()


async def test_an_unknown_target_version_is_refused(server: Cluster, folder: Path) -> None:
    url = await server.fresh_database()

    with pytest.raises(MigrationError, match="No such migration: 20240101000000"):
        await apply_migrations(url, folder=folder, to="20240101000000")
    assert await tables(url) == set()


async def test_status_shows_what_is_applied_and_when(server: Cluster, folder: Path) -> None:
    url = await server.fresh_database()
    before = datetime.now(UTC) - timedelta(minutes=1)
    await apply_migrations(url, folder=folder, to=FIRST)

    status = await read_migration_status(url, folder=folder)

    [applied] = status.applied
    assert (applied.version, applied.name) == (FIRST, "one")
    assert before < applied.applied_at < datetime.now(UTC) + timedelta(minutes=1)
    assert versions(list(status.pending)) == [SECOND, THIRD]
    assert (status.changed, status.unknown) == ((), ())


async def test_a_file_changed_after_it_was_applied_is_refused_by_name(server: Cluster, folder: Path) -> None:
    url = await server.fresh_database()
    await apply_migrations(url, folder=folder, to=FIRST)
    write(folder, FIRST, "one", "create table if not exists public.one (id bigint);")

    with pytest.raises(MigrationError, match=f"{FIRST}_one.sql"):
        await apply_migrations(url, folder=folder)
    assert await tables(url) == {"one"}
    assert versions(list((await read_migration_status(url, folder=folder)).changed)) == [FIRST]


async def test_a_database_newer_than_the_code_is_unchanged(server: Cluster, folder: Path) -> None:
    url = await server.fresh_database()
    await apply_migrations(url, folder=folder)
    (folder / f"{THIRD}_three.sql").unlink()

    with pytest.raises(MigrationError, match="newer than this Pabal"):
        await apply_migrations(url, folder=folder)
    with pytest.raises(MigrationError, match="newer than this Pabal"):
        await revert_migrations(url, folder=folder)
    assert await tables(url) == {"one", "two", "three"}
    [unknown] = (await read_migration_status(url, folder=folder)).unknown
    assert unknown.version == THIRD


def test_an_older_unknown_migration_is_not_reported_as_newer(folder: Path) -> None:
    known = migrate.load_migrations(folder)
    unknown = AppliedMigration("20240101000000", "gone", "x", datetime.now(UTC))

    with pytest.raises(MigrationError, match="does not know: 20240101000000_gone"):
        check_migration_status(compare_migrations(known, (unknown,)), known)


async def test_a_foreign_table_of_the_same_name_stops_before_the_first_file(server: Cluster, folder: Path) -> None:
    url = await server.fresh_database()
    async with open_connection(url) as conn:
        await conn.execute("create table public.two (foreign_column text); insert into public.two values ('kept')")

        with pytest.raises(MigrationError, match=r"table public\.two exists and is not Pabal's"):
            await apply_migrations(url, folder=folder)

        assert await conn.fetchval("select foreign_column from public.two") == "kept"
    assert await tables(url) == {"two"}


@pytest.mark.parametrize("name", ["public.accounts", "public.event_queue", "public.services"])
async def test_a_foreign_table_of_the_same_name_stops_the_shipped_files(server: Cluster, name: str) -> None:
    url = await server.fresh_database()
    async with open_connection(url) as conn:
        await conn.execute(f"create table {name} (foreign_column text)")

        with pytest.raises(MigrationError, match=f"table {name} exists and is not Pabal's"):
            await apply_migrations(url)

        assert [tuple(row) for row in await conn.fetch(f"select * from {name}")] == []
        columns = await conn.fetch(
            "select attname from pg_attribute where attrelid = $1::regclass and attnum > 0", name
        )
        assert [row["attname"] for row in columns] == ["foreign_column"]


async def test_a_failing_file_is_rolled_back(server: Cluster, folder: Path) -> None:
    url = await server.fresh_database()
    write(folder, SECOND, "two", "create table if not exists public.two (id int);\n\nselect missing from public.two;")

    with pytest.raises(MigrationError, match=f'{SECOND}_two.sql line 3: column "missing" does not exist'):
        await apply_migrations(url, folder=folder)

    assert await tables(url) == {"one"}
    assert [row.version for row in (await read_migration_status(url, folder=folder)).applied] == [FIRST]


async def test_a_failing_revert_changes_nothing(server: Cluster, folder: Path) -> None:
    url = await server.fresh_database()
    write(folder, FIRST, "one", "create table if not exists public.one (id int);", "drop table public.nothing;")
    await apply_migrations(url, folder=folder, to=FIRST)

    with pytest.raises(MigrationError, match=f"down/{FIRST}_one.sql"):
        await revert_migrations(url, folder=folder)

    assert await tables(url) == {"one"}
    assert [row.version for row in (await read_migration_status(url, folder=folder)).applied] == [FIRST]


async def test_two_concurrent_migrations_apply_each_file_once(server: Cluster) -> None:
    url = await server.fresh_database()

    first, second = await asyncio.gather(apply_migrations(url), apply_migrations(url))

    expected = [migration.version for migration in migrate.load_migrations()]
    assert sorted(versions(first) + versions(second)) == expected
    assert [row.version for row in (await read_migration_status(url)).applied] == expected


async def test_waiting_for_another_migration_times_out(server: Cluster, folder: Path) -> None:
    url = await server.fresh_database()
    async with open_connection(url) as other, other.transaction():
        await other.execute("select pg_advisory_xact_lock($1)", migrate.MIGRATION_LOCK_ID)
        with pytest.raises(MigrationError, match=r"held the lock of migrations .*: role \w+, process \d+"):
            await apply_migrations(url, folder=folder, lock_timeout=timedelta(milliseconds=150))

    assert versions(await apply_migrations(url, folder=folder)) == [FIRST, SECOND, THIRD]


async def test_settings_reach_the_migration(server: Cluster, tmp_path: Path) -> None:
    (tmp_path / "down").mkdir()
    write(
        tmp_path,
        FIRST,
        "one",
        "create table public.one as select current_setting('pabal.test_setting', true) as setting;",
    )
    url = await server.fresh_database()

    await apply_migrations(url, folder=tmp_path, settings={"pabal.test_setting": "on"})

    async with open_connection(url) as conn:
        assert await conn.fetchval("select setting from public.one") == "on"


async def test_the_login_becomes_an_inheriting_member_of_service_role(server: Cluster) -> None:
    url = await server.fresh_database()
    async with open_connection(url) as conn:
        await conn.execute('create role "Hub Login" login')
        await apply_migrations(url, login="Hub Login")
        await apply_migrations(url, login="Hub Login")

        assert await conn.fetchval("select pg_has_role('Hub Login', 'service_role', 'usage')")
        await conn.execute('drop role "Hub Login"')


async def test_a_superuser_login_needs_no_membership(server: Cluster) -> None:
    url = await server.fresh_database()
    await apply_migrations(url, login="pabal")

    async with open_connection(url) as conn:
        membership_count = await conn.fetchval("select count(*) from pg_auth_members where member = 'pabal'::regrole")
    assert membership_count == 0


async def test_an_owner_without_superuser_can_migrate(server: Cluster) -> None:
    """As on Supabase and most managed servers, where the roles may exist already."""
    async with open_connection(await server.fresh_database()) as conn:
        await conn.execute("create role db_owner login createrole createdb")
        await conn.execute("create database db_owner owner db_owner")
    url = server.url("db_owner", "db_owner")

    await apply_migrations(url)
    await revert_migrations(url)

    assert await tables(url) == set()


async def test_an_unknown_login_is_refused(server: Cluster) -> None:
    url = await server.fresh_database()
    with pytest.raises(MigrationError, match="No such role: unknown_login"):
        await apply_migrations(url, login="unknown_login")


async def test_the_error_for_a_login_without_inherit_says_what_to_do(server: Cluster) -> None:
    url = await server.fresh_database()
    async with open_connection(url) as conn:
        await conn.execute("create role without_inherit login noinherit")
        with pytest.raises(MigrationError, match="alter role without_inherit inherit"):
            await apply_migrations(url, login="without_inherit")
        await conn.execute("drop role without_inherit")


async def test_a_missing_database_is_unavailable(server: Cluster) -> None:
    with pytest.raises(Unavailable, match="missing_database"):
        await apply_migrations(server.url("missing_database"))
    with pytest.raises(Unavailable):
        await read_migration_status("postgresql://pabal@127.0.0.1:1/pabal")


def test_postgres_14_is_too_old() -> None:
    with pytest.raises(MigrationError, match="PostgreSQL 14 is too old; Pabal needs 15"):
        check_server_version(14)
    check_server_version(15)


def test_a_file_with_another_name_format_is_refused(folder: Path) -> None:
    (folder / "fix.sql").write_text("select 1;")
    with pytest.raises(MigrationError, match=r"fix\.sql is not named"):
        migrate.load_migrations(folder)


def test_two_files_with_one_version_are_refused(folder: Path) -> None:
    write(folder, FIRST, "again", "select 1;")
    with pytest.raises(MigrationError, match=f"have the version {FIRST}"):
        migrate.load_migrations(folder)


def test_commented_and_shared_tables_are_not_created_tables() -> None:
    migration = migrate.Migration(
        FIRST,
        "x",
        "-- create table if not exists public.commented ()\n"
        "create table if not exists auth.users ();\n"
        "create unlogged table if not exists pabal.fast ();\n"
        "CREATE TABLE IF NOT EXISTS plain ();",
        "",
        "",
    )
    assert migration.created_tables() == ("pabal.fast", "public.plain")


def test_every_shipped_file_has_a_rollback() -> None:
    assert [migration.file_name for migration in migrate.load_migrations() if not migration.down_sql.strip()] == []
