"""Who reaches what: every table, every role, every verb, found in the catalogue so that no new table is forgotten."""

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
from support.clusters import Cluster, Connection, connected

pytestmark = pytest.mark.anyio

BEFORE = Path(__file__).with_name("seeds") / "before.sql"
# Supabase gives whatever is made in public to everybody; a policy or a missing revoke would show only there.
GENEROUS = """
    alter default privileges in schema public grant all on tables to anon, authenticated, service_role;
    alter default privileges in schema public grant all on sequences to anon, authenticated, service_role;
    alter default privileges in schema public grant all on functions to anon, authenticated, service_role;
"""
KINDS = ("plain", "supabase")
VERBS = ("select", "insert", "update", "delete")
OUTSIDERS = ("anon", "authenticated", "pabal_publisher")
LOGIN = "hub_login"

APPEND_ONLY = {"pabal.audit_log", "pabal.audit_seals", "notification.attempts"}
READ_ONLY = {"pabal.schema_migrations"}
SEEN_BY_PEOPLE = {"public.dead_letter_queue", "public.profiles"}  # a policy decides which rows
FOR_EVERYBODY = {"pabal.now()", "pabal.uuid7()", "auth.uid()"}
FOR_PUBLISHERS = {"publish", "request"}  # pabal.publish, notification.request


@dataclass(frozen=True, slots=True)
class House:
    """A migrated database and the tables that Pabal made in it."""

    conn: Connection
    url: str
    tables: tuple[str, ...]


@pytest.fixture(scope="session")
def templates(server: Cluster) -> dict[str, tuple[str, frozenset[str]]]:
    """A migrated database of each kind to copy, and what was there before."""

    async def make(kind: str) -> tuple[str, frozenset[str]]:
        url = await server.fresh_database()
        async with connected(url) as conn:
            if kind == "supabase":
                await conn.execute(BEFORE.read_text("utf-8"))
                await conn.execute(GENEROUS)
            if not await conn.fetchval("select to_regrole($1)", LOGIN):
                await conn.execute(f"create role {LOGIN} login")
            found = frozenset(await tables(conn))
        await apply_migrations(url, login=LOGIN)
        return url.rpartition("/")[2], found

    async def both() -> dict[str, tuple[str, frozenset[str]]]:
        return {kind: await make(kind) for kind in KINDS}

    return asyncio.run(both())


@pytest.fixture(params=KINDS)
async def house(
    server: Cluster, templates: dict[str, tuple[str, frozenset[str]]], request: pytest.FixtureRequest
) -> AsyncGenerator[House]:
    name, found = templates[request.param]
    url = await server.fresh_database(name)
    async with connected(url) as conn:
        yield House(conn, url, tuple(table for table in await tables(conn) if table not in found))
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


def may(role: str, table: str, verb: str) -> bool:
    """Say what the contract says."""
    if role == "authenticated":
        return verb == "select" and table in SEEN_BY_PEOPLE
    if role in OUTSIDERS:
        return False
    if table in APPEND_ONLY:
        return verb in {"select", "insert"}
    return verb == "select" or table not in READ_ONLY


async def attempt(conn: Connection, table: str, verb: str) -> bool:
    """Try the verb on no rows at all: only the right to it is asked for."""
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
    }[verb]
    try:
        async with conn.transaction():
            await conn.execute(statement)
    except asyncpg.InsufficientPrivilegeError:
        return False
    return True


async def matrix(conn: Connection, names: tuple[str, ...]) -> dict[tuple[str, str], bool]:
    return {(table, verb): await attempt(conn, table, verb) for table, verb in product(names, VERBS)}


@pytest.mark.parametrize("role", [*OUTSIDERS, "service_role"])
async def test_a_role_reaches_what_it_should_and_nothing_else(house: House, role: str) -> None:
    assert len(house.tables) > 15
    await house.conn.execute(f"set role {role}")

    reached = await matrix(house.conn, house.tables)

    assert reached == {(t, v): may(role, t, v) for t, v in product(house.tables, VERBS)}


async def test_the_hubs_login_works_as_service_role_without_asking(house: House, server: Cluster) -> None:
    database = house.url.rpartition("/")[2]
    async with connected(server.url(database, LOGIN)) as conn:
        reached = await matrix(conn, house.tables)

        assert reached == {(t, v): may(LOGIN, t, v) for t, v in product(house.tables, VERBS)}
        # Grants alone would not do: the policies must let the rows through.
        assert await conn.fetchval("select count(*) from public.services") == 5


async def test_nobody_but_the_owner_may_truncate_refer_or_trigger(house: House) -> None:
    loose = await house.conn.fetch(
        """
        select format('%s %s %s', role, name, privilege) as what
        from unnest($1::text[]) as name, unnest($2::text[]) as role,
             unnest('{truncate,references,trigger}'::text[]) as privilege
        where has_table_privilege(role, name, privilege)
        """,
        list(house.tables),
        list(OUTSIDERS),
    )
    assert [row["what"] for row in loose] == []


async def test_every_table_has_row_level_security_and_its_policy(house: House) -> None:
    bare = await house.conn.fetch(
        """
        select name from unnest($1::text[]) as name join pg_class as c on c.oid = name::regclass
        where relkind in ('r', 'p') and (not relrowsecurity or not exists (
          select from pg_policy where polrelid = c.oid and polname = relname || '_service_role_all'
            and polroles = array['service_role'::regrole::oid]
        ))
        """,
        list(house.tables),
    )
    assert [row["name"] for row in bare] == []


async def test_no_policy_lets_anybody_else_in(house: House) -> None:
    others = await house.conn.fetch(
        """
        select format('%s.%s', schemaname, tablename) as name, policyname as policy, cmd, roles::text[] as roles
        from pg_policies where roles <> '{service_role}' and format('%s.%s', schemaname, tablename) = any($1)
        """,
        list(house.tables),
    )
    assert {(row["name"], row["cmd"], *row["roles"]) for row in others} == {
        (table, "SELECT", "authenticated") for table in SEEN_BY_PEOPLE & set(house.tables)
    }


async def test_sequences_are_nobodys(house: House) -> None:
    open_ones = await house.conn.fetch(
        f"""
        select format('%s %s', role, c.oid::regclass) as what
        from pg_class as c join pg_namespace as n on n.oid = relnamespace, unnest($1::text[]) as role
        where {OURS} and relkind = 'S' and has_sequence_privilege(role, c.oid, 'usage, select, update')
        """,
        list(OUTSIDERS),
    )
    assert [row["what"] for row in open_ones] == []


@pytest.mark.parametrize("role", OUTSIDERS)
async def test_functions_are_for_those_who_need_them(house: House, role: str) -> None:
    rows = await house.conn.fetch(
        f"""
        select format('%s.%s(%s)', nspname, proname, oidvectortypes(proargtypes)) as name, proname as short
        from pg_proc as p join pg_namespace as n on n.oid = pronamespace
        where {OURS} and has_function_privilege($1, p.oid, 'execute')
          and not (proname = 'update_updated_at_column' and proconfig is null)  -- the one Supabase brought
        """,
        role,
    )
    allowed = {row["name"] for row in rows if role == "pabal_publisher" and row["short"] in FOR_PUBLISHERS}
    assert {row["name"] for row in rows} - allowed <= FOR_EVERYBODY


async def test_whoever_lends_rights_looks_nowhere_else(house: House) -> None:
    """A SECURITY DEFINER function with a search path can be made to run somebody else's code."""
    rows = await house.conn.fetch(
        f"""
        select p.oid::regprocedure::text as name
        from pg_proc as p join pg_namespace as n on n.oid = pronamespace
        where {OURS} and prosecdef and not coalesce('search_path=""' = any(proconfig), false)
        """
    )
    assert [row["name"] for row in rows] == []


async def person(conn: Connection, role: str | None) -> UUID:
    who = await conn.fetchval("insert into auth.users (id) values (gen_random_uuid()) returning id")
    if role is not None:
        await conn.execute("insert into public.profiles (id, role) values ($1, $2)", who, role)
    return who


@pytest.mark.parametrize(
    ("profile", "letters"), [(None, 0), ("user", 0), ("admin", 1), ("super_admin", 1), ("Admin", 0)]
)
@pytest.mark.parametrize("claims", ["claims", "claim"])
async def test_only_an_administrator_sees_dead_letters(
    house: House, profile: str | None, letters: int, claims: str
) -> None:
    conn = house.conn
    await conn.execute(
        "insert into public.event_queue (event_type, source_service, status) values ('a.b', 'hub', 'failed')"
    )
    who = await person(conn, profile)
    await person(conn, "admin")
    await conn.execute("select set_config('request.jwt.claims', $1, false)", f'{{"sub": "{who}"}}')
    if claims == "claim" and "public.profiles" in house.tables:  # the older form, where the function is ours
        await conn.execute("select set_config('request.jwt.claims', '', false)")
        await conn.execute("select set_config('request.jwt.claim.sub', $1, false)", str(who))
    await conn.execute("set role authenticated")

    assert await conn.fetchval("select count(*) from public.dead_letter_queue") == letters
    assert await conn.fetchval("select count(*) from public.profiles") == (profile is not None)
