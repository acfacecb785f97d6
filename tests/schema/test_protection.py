"""Privileges of every role on every table, read from the catalog so that no new table is missed."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from uuid import UUID

import asyncpg
import pytest

from pabal.db.migrate import apply_migrations
from support.catalog import OURS
from support.clusters import Cluster, Connection, open_connection

pytestmark = pytest.mark.anyio

BEFORE = Path(__file__).with_name("seeds") / "before.sql"
# Supabase grants every new table in public to all roles: a missing revoke shows only there.
SUPABASE_DEFAULTS = """
    alter default privileges in schema public grant all on tables to anon, authenticated, service_role;
    alter default privileges in schema public grant all on sequences to anon, authenticated, service_role;
    alter default privileges in schema public grant all on functions to anon, authenticated, service_role;
"""
KINDS = ("plain", "supabase")
OPERATIONS = ("select", "insert", "update", "delete")
OTHER_ROLES = ("anon", "authenticated", "pabal_publisher")
LOGIN = "hub_login"

APPEND_ONLY = {"pabal.audit_log", "pabal.audit_seals", "notification.attempts"}
READ_ONLY = {"pabal.schema_migrations"}
READABLE_BY_USERS = {"public.dead_letter_queue", "public.profiles"}  # a policy decides which rows
GRANTED_TO_ALL = {"pabal.now()", "pabal.uuid7()", "auth.uid()"}
GRANTED_TO_PUBLISHERS = {"publish", "request"}  # pabal.publish, notification.request


@dataclass(frozen=True, slots=True)
class MigratedDatabase:
    """A migrated database and the tables that Pabal created in it."""

    conn: Connection
    url: str
    tables: tuple[str, ...]


@pytest.fixture(scope="session")
def templates(server: Cluster) -> dict[str, tuple[str, frozenset[str]]]:
    """A migrated database of each kind to copy, and the tables that existed before."""

    async def migrate(kind: str) -> tuple[str, frozenset[str]]:
        url = await server.fresh_database()
        async with open_connection(url) as conn:
            if kind == "supabase":
                await conn.execute(BEFORE.read_text("utf-8"))
                await conn.execute(SUPABASE_DEFAULTS)
            if not await conn.fetchval("select to_regrole($1)", LOGIN):
                await conn.execute(f"create role {LOGIN} login")
            existing = frozenset(await tables(conn))
        await apply_migrations(url, login=LOGIN)
        return url.rpartition("/")[2], existing

    async def migrate_all() -> dict[str, tuple[str, frozenset[str]]]:
        return {kind: await migrate(kind) for kind in KINDS}

    return asyncio.run(migrate_all())


@pytest.fixture(params=KINDS)
async def migrated_database(
    server: Cluster, templates: dict[str, tuple[str, frozenset[str]]], request: pytest.FixtureRequest
) -> AsyncGenerator[MigratedDatabase]:
    name, existing = templates[request.param]
    url = await server.fresh_database(name)
    async with open_connection(url) as conn:
        yield MigratedDatabase(conn, url, tuple(table for table in await tables(conn) if table not in existing))
    await server.drop(url)


async def tables(conn: Connection) -> list[str]:
    rows = await conn.fetch(
        f"""
        select format('%s.%s', nspname, relname) as name
        from pg_class as c join pg_namespace as n on n.oid = relnamespace
        where {OURS} and relkind in ('r', 'p', 'v', 'm') order by 1
        """
    )
    return [row["name"] for row in rows]


def is_allowed(role: str, table: str, operation: str) -> bool:
    """The expected privilege."""
    if role == "authenticated":
        return operation == "select" and table in READABLE_BY_USERS
    if role in OTHER_ROLES:
        return False
    if table in APPEND_ONLY:
        return operation in {"select", "insert"}
    return operation == "select" or table not in READ_ONLY


async def try_operation(conn: Connection, table: str, operation: str) -> bool:
    """Run the statement on no rows: only the privilege is checked."""
    column = await conn.fetchrow(
        """
        select quote_ident(attname) as name, format_type(atttypid, atttypmod) as type from pg_attribute
        where attrelid = (select c.oid from pg_class as c join pg_namespace as n on n.oid = relnamespace
                          where format('%s.%s', nspname, relname) = $1)
          and attnum > 0 and attgenerated = '' and attidentity = '' and not attisdropped
        order by attnum limit 1
        """,
        table,
    )
    assert column is not None
    name = column["name"]
    statement = {
        "select": f"select from {table} limit 0",
        "insert": f"insert into {table} ({name}) select null::{column['type']} where false",
        "update": f"update {table} set {name} = null where false",
        "delete": f"delete from {table} where false",
    }[operation]
    try:
        async with conn.transaction():
            await conn.execute(statement)
    except asyncpg.InsufficientPrivilegeError:
        return False
    return True


async def privileges(conn: Connection, names: tuple[str, ...]) -> dict[tuple[str, str], bool]:
    return {
        (table, operation): await try_operation(conn, table, operation)
        for table, operation in product(names, OPERATIONS)
    }


@pytest.mark.parametrize("role", [*OTHER_ROLES, "service_role"])
async def test_a_role_has_exactly_its_privileges(migrated_database: MigratedDatabase, role: str) -> None:
    assert len(migrated_database.tables) > 15
    await migrated_database.conn.execute(f"set role {role}")

    actual = await privileges(migrated_database.conn, migrated_database.tables)

    assert actual == {
        (table, operation): is_allowed(role, table, operation)
        for table, operation in product(migrated_database.tables, OPERATIONS)
    }


async def test_the_hubs_login_has_service_role_without_set_role(
    migrated_database: MigratedDatabase, server: Cluster
) -> None:
    database = migrated_database.url.rpartition("/")[2]
    async with open_connection(server.url(database, LOGIN)) as conn:
        actual = await privileges(conn, migrated_database.tables)

        assert actual == {
            (table, operation): is_allowed(LOGIN, table, operation)
            for table, operation in product(migrated_database.tables, OPERATIONS)
        }
        # Grants are not enough: the policies must allow the rows.
        assert await conn.fetchval("select count(*) from public.services") == 5


async def test_only_the_owner_may_truncate_reference_or_create_triggers(migrated_database: MigratedDatabase) -> None:
    rows = await migrated_database.conn.fetch(
        """
        select format('%s %s %s', role, name, privilege) as what
        from unnest($1::text[]) as name, unnest($2::text[]) as role,
             unnest('{truncate,references,trigger}'::text[]) as privilege
        where has_table_privilege(role, name, privilege)
        """,
        list(migrated_database.tables),
        list(OTHER_ROLES),
    )
    assert [row["what"] for row in rows] == []


async def test_every_table_has_row_level_security_and_its_policy(migrated_database: MigratedDatabase) -> None:
    rows = await migrated_database.conn.fetch(
        """
        select name from unnest($1::text[]) as name join pg_class as c on c.oid = name::regclass
        where relkind in ('r', 'p') and (not relrowsecurity or not exists (
          select from pg_policy where polrelid = c.oid and polname = relname || '_service_role_all'
            and polroles = array['service_role'::regrole::oid]
        ))
        """,
        list(migrated_database.tables),
    )
    assert [row["name"] for row in rows] == []


async def test_no_policy_applies_to_other_roles(migrated_database: MigratedDatabase) -> None:
    rows = await migrated_database.conn.fetch(
        """
        select format('%s.%s', schemaname, tablename) as name, policyname as policy, cmd, roles::text[] as roles
        from pg_policies where roles <> '{service_role}' and format('%s.%s', schemaname, tablename) = any($1)
        """,
        list(migrated_database.tables),
    )
    assert {(row["name"], row["cmd"], *row["roles"]) for row in rows} == {
        (table, "SELECT", "authenticated") for table in READABLE_BY_USERS & set(migrated_database.tables)
    }


async def test_sequences_are_private(migrated_database: MigratedDatabase) -> None:
    rows = await migrated_database.conn.fetch(
        f"""
        select format('%s %s', role, c.oid::regclass) as what
        from pg_class as c join pg_namespace as n on n.oid = relnamespace, unnest($1::text[]) as role
        where {OURS} and relkind = 'S' and has_sequence_privilege(role, c.oid, 'usage, select, update')
        """,
        list(OTHER_ROLES),
    )
    assert [row["what"] for row in rows] == []


@pytest.mark.parametrize("role", OTHER_ROLES)
async def test_functions_are_granted_only_to_roles_that_need_them(
    migrated_database: MigratedDatabase, role: str
) -> None:
    rows = await migrated_database.conn.fetch(
        f"""
        select format('%s.%s(%s)', nspname, proname, oidvectortypes(proargtypes)) as name, proname as short
        from pg_proc as p join pg_namespace as n on n.oid = pronamespace
        where {OURS} and has_function_privilege($1, p.oid, 'execute')
          and not (proname = 'update_updated_at_column' and proconfig is null)  -- Supabase's own function
        """,
        role,
    )
    allowed = {row["name"] for row in rows if role == "pabal_publisher" and row["short"] in GRANTED_TO_PUBLISHERS}
    assert {row["name"] for row in rows} - allowed <= GRANTED_TO_ALL


async def test_security_definer_functions_have_an_empty_search_path(migrated_database: MigratedDatabase) -> None:
    """With a search path, a SECURITY DEFINER function could be made to run code of another role."""
    rows = await migrated_database.conn.fetch(
        f"""
        select p.oid::regprocedure::text as name
        from pg_proc as p join pg_namespace as n on n.oid = pronamespace
        where {OURS} and prosecdef and not coalesce('search_path=""' = any(proconfig), false)
        """
    )
    assert [row["name"] for row in rows] == []


async def add_user(conn: Connection, role: str | None) -> UUID:
    user_id = await conn.fetchval("insert into auth.users (id) values (gen_random_uuid()) returning id")
    if role is not None:
        await conn.execute("insert into public.profiles (id, role) values ($1, $2)", user_id, role)
    return user_id


@pytest.mark.parametrize(
    ("profile", "dead_letters"), [(None, 0), ("user", 0), ("admin", 1), ("super_admin", 1), ("Admin", 0)]
)
@pytest.mark.parametrize("claims", ["claims", "claim"])
async def test_only_an_administrator_sees_dead_letters(
    migrated_database: MigratedDatabase, profile: str | None, dead_letters: int, claims: str
) -> None:
    conn = migrated_database.conn
    await conn.execute(
        "insert into public.event_queue (event_type, source_service, status) values ('a.b', 'hub', 'failed')"
    )
    user_id = await add_user(conn, profile)
    await add_user(conn, "admin")
    await conn.execute("select set_config('request.jwt.claims', $1, false)", f'{{"sub": "{user_id}"}}')
    if (
        claims == "claim" and "public.profiles" in migrated_database.tables
    ):  # the older setting, which only Pabal's auth.uid() reads
        await conn.execute("select set_config('request.jwt.claims', '', false)")
        await conn.execute("select set_config('request.jwt.claim.sub', $1, false)", str(user_id))
    await conn.execute("set role authenticated")

    assert await conn.fetchval("select count(*) from public.dead_letter_queue") == dead_letters
    assert await conn.fetchval("select count(*) from public.profiles") == (profile is not None)
