"""All collisions of the migrations with a database are reported before the first change."""

from pathlib import Path

import pytest

from pabal.core.errors import MigrationError
from pabal.db.migrate import apply_migrations, preflight_migrations, read_migration_status
from support.catalog import snapshot
from support.clusters import Cluster, Connection, open_connection

pytestmark = pytest.mark.anyio

SUPABASE = Path(__file__).parents[1] / "schema" / "seeds" / "before.sql"


async def collisions_of(url: str) -> set[str]:
    return {f"{collision.object} {collision.problem}" for collision in await preflight_migrations(url)}


async def prepared(conn: Connection, sql: str) -> None:
    await conn.execute(SUPABASE.read_text("utf-8"))
    await conn.execute(sql)


async def test_an_empty_and_a_migrated_database_have_no_collisions(server: Cluster) -> None:
    url = await server.fresh_database()

    assert await collisions_of(url) == set()
    await apply_migrations(url)
    assert await collisions_of(url) == set()


async def test_a_database_of_supabase_has_no_collisions(server: Cluster) -> None:
    url = await server.fresh_database()
    async with open_connection(url) as conn:
        await conn.execute(SUPABASE.read_text("utf-8"))

    assert await collisions_of(url) == set()


async def test_a_profiles_table_without_role_stops_before_the_first_change(server: Cluster) -> None:
    url = await server.fresh_database()
    async with open_connection(url) as conn:
        await prepared(conn, "alter table public.profiles drop column role")
        before = await snapshot(conn)

        with pytest.raises(MigrationError, match=r"table public\.profiles has no column role; run: alter table"):
            await apply_migrations(url)

        assert await snapshot(conn) == before
        assert (await read_migration_status(url)).applied == ()
        [collision] = await preflight_migrations(url)
        await conn.execute(collision.advice.removeprefix("run: "))
    assert len(await apply_migrations(url)) > 1


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        (
            (
                "create table public.accounts (id int); create view public.services as select 1;"
                " create table public.mine (id int); create index idx_messages_expires on public.mine (id)"
            ),
            {
                "table public.accounts exists and is not Pabal's",
                "view public.services exists and is not Pabal's",
                "index public.idx_messages_expires of public.mine exists and is not Pabal's",
            },
        ),
        (
            "create type public.accounts as enum ('one')",
            {"type public.accounts exists and is not Pabal's"},
        ),
        (
            "create function public.cleanup_expired_tokens() returns void language sql as ''",
            {"function public.cleanup_expired_tokens() exists and is not Pabal's"},
        ),
        (
            "create function public.cleanup_old_events(integer) returns void language sql as ''",
            {"function public.cleanup_old_events(integer) exists and is not Pabal's"},
        ),
        (
            (
                "drop function public.update_updated_at_column();"
                " create function public.update_updated_at_column() returns integer language sql as 'select 1'"
            ),
            {"function public.update_updated_at_column() returns integer, not trigger"},
        ),
        (
            (
                "create schema guild; create table guild.guilds (id bigint primary key);"
                " create schema identity; create table identity.users (id uuid)"
            ),
            {
                "column guild.guilds.id is bigint, not uuid",
                "column identity.users.id has no primary key or unique constraint",
            },
        ),
        (
            (
                "drop table public.profiles; create type public.app_role as enum ('admin', 'user');"
                " create table public.profiles (id uuid primary key, role public.app_role)"
            ),
            {"type app_role of public.profiles.role has no value super_admin"},
        ),
        (
            "alter table public.profiles alter column role type integer using 1",
            {"column public.profiles.role is integer, not text"},
        ),
        ("alter table public.profiles rename column id to user_id", {"table public.profiles has no column id"}),
    ],
)
async def test_every_collision_is_reported_and_nothing_changes(server: Cluster, sql: str, expected: set[str]) -> None:
    url = await server.fresh_database()
    async with open_connection(url) as conn:
        await prepared(conn, sql)
        before = await snapshot(conn)

        assert await collisions_of(url) == expected
        with pytest.raises(MigrationError, match="nothing was changed"):
            await apply_migrations(url)

        assert await snapshot(conn) == before


async def test_tables_of_the_specification_lead_to_the_adoption(server: Cluster) -> None:
    url = await server.fresh_database()
    async with open_connection(url) as conn:
        await conn.execute("create table public.accounts (id int); create table public.relay_sessions (id int)")

    advice = {collision.object: collision.advice for collision in await preflight_migrations(url)}

    assert "pabal adopt --dry-run" in advice["table public.accounts"]
    assert "pabal adopt" not in advice["table public.relay_sessions"]


async def test_missing_privileges_are_collisions(server: Cluster) -> None:
    url = await server.fresh_database()
    async with open_connection(url) as conn:
        await prepared(conn, "create role plain login; revoke create on schema public from public")
        await conn.execute("grant usage on schema auth to plain; drop function auth.uid() cascade")
        plain = server.url(url.rpartition("/")[2], user="plain")

        assert await collisions_of(plain) >= {
            "role plain may not create schemas",
            "role plain may not create objects in schema public",
            "role plain may not create objects in schema auth",
            "role plain may not refer to table auth.users",
        }
        await conn.execute("drop owned by plain; drop role plain")


async def test_objects_of_applied_migrations_are_not_collisions(server: Cluster) -> None:
    url = await server.fresh_database()
    await apply_migrations(url, to="20251201110000")

    assert await collisions_of(url) == set()
