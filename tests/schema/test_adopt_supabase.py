"""A database of Supabase, whose owner is no superuser, is checked, migrated and adopted."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from pabal.core.errors import MigrationError
from pabal.db.adopt.adopt import adopt_database, read_adoption_plan
from pabal.db.migrate import apply_migrations, preflight_migrations
from support.catalog import snapshot
from support.clusters import Cluster, Connection, open_connection
from support.supabase import ADD_ROLE, supabase_database

pytestmark = pytest.mark.anyio

FOLDER = Path(__file__).parent
ROWS = FOLDER / "existing" / "rows.sql"
SHARED_TABLES = (
    "create schema guild; create schema identity; create schema notification;"
    "create table guild.guilds (id uuid primary key); create table identity.users (id uuid primary key)"
)
GRANTS = """
select c.oid::regclass::text || ' ' || a.grantee::regrole::text || ' ' || a.privilege_type
from pg_class c, aclexplode(c.relacl) a
where c.relnamespace = 'public'::regnamespace and c.relname not in ('profiles')
  and a.grantee in ('anon'::regrole, 'authenticated'::regrole)
union all
select p.oid::regprocedure::text || ' ' || a.grantee::regrole::text
from pg_proc p, aclexplode(p.proacl) a
where p.pronamespace = 'public'::regnamespace and p.proname <> 'update_updated_at_column'
  and a.grantee in ('anon'::regrole, 'authenticated'::regrole)
"""


@pytest.fixture
async def supabase(server: Cluster) -> AsyncGenerator[str]:
    url = await supabase_database(server)
    yield url
    await server.drop(url)


async def run_specification(conn: Connection, *names: str) -> None:
    for name in names:
        await conn.execute((FOLDER / "seeds" / f"{name}.sql").read_text("utf-8"))


async def test_a_profiles_table_without_role_is_the_only_collision(supabase: str) -> None:
    [collision] = await preflight_migrations(supabase)

    assert str(collision) == f"table public.profiles has no column role; run: {ADD_ROLE}"
    async with open_connection(supabase) as conn:
        await conn.execute(ADD_ROLE)
        await apply_migrations(supabase)
        grants = [row[0] for row in await conn.fetch(GRANTS)]
    assert grants == ["dead_letter_queue authenticated SELECT"]


async def test_an_adopted_database_has_the_catalog_of_a_new_hub(server: Cluster, supabase: str) -> None:
    new_url = await supabase_database(server)
    async with open_connection(new_url) as new, open_connection(supabase) as adopted:
        for conn in (new, adopted):
            await conn.execute(ADD_ROLE)
        await new.execute(SHARED_TABLES)
        await apply_migrations(new_url)
        await run_specification(adopted, "000", "001", "002")
        await adopted.execute(ROWS.read_text("utf-8"))

        plan = await adopt_database(supabase, "cli:test")

        assert await snapshot(adopted) == await snapshot(new)
        assert [row[0] for row in await adopted.fetch(GRANTS)] == ["dead_letter_queue authenticated SELECT"]
        created = "select kind, name from pabal.created_objects order by 1, 2"
        assert await adopted.fetch(created) == await new.fetch(created)
        assert await adopted.fetchval("select count(*) from auth.users") == 1
    assert sum(plan.rows.values()) > 30
    await server.drop(new_url)


async def test_a_profiles_table_without_role_stops_the_adoption(supabase: str) -> None:
    async with open_connection(supabase) as conn:
        await run_specification(conn, "002")
        before = await snapshot(conn)

        plan = await read_adoption_plan(supabase)
        with pytest.raises(MigrationError, match="nothing was changed"):
            await adopt_database(supabase, "cli:test")

        assert [conflict.object for conflict in plan.conflicts] == ["table public.profiles"]
        assert await snapshot(conn) == before


async def test_tables_of_another_role_are_a_conflict(server: Cluster, supabase: str) -> None:
    async with open_connection(server.url(supabase.rpartition("/")[2])) as superuser:
        await superuser.execute("set search_path = public")
        await run_specification(superuser, "002")

    plan = await read_adoption_plan(supabase)

    assert "belongs to pabal; adopt as that role" in {conflict.text for conflict in plan.conflicts}


async def test_a_table_that_hides_rows_from_its_owner_is_a_conflict(server: Cluster, supabase: str) -> None:
    """The rows that a policy hides would be neither counted nor copied, and then dropped with the table."""
    async with open_connection(server.url(supabase.rpartition("/")[2])) as superuser, open_connection(supabase) as conn:
        await superuser.execute(ADD_ROLE)
        await run_specification(conn, "002")
        await conn.execute("insert into public.accounts (openclaw_user_id, relay_token_hash) values ('mina', 'x')")
        await conn.execute("alter table public.accounts enable row level security, force row level security")
        await superuser.execute("alter role postgres nobypassrls")
        try:
            plan = await read_adoption_plan(supabase)
            with pytest.raises(MigrationError, match="nothing was changed"):
                await adopt_database(supabase, "cli:test")
        finally:
            await superuser.execute("alter role postgres bypassrls")

        assert [(conflict.object, conflict.text) for conflict in plan.conflicts] == [
            (
                "table public.accounts",
                "hides rows from its owner; run: alter table public.accounts no force row level security",
            )
        ]
        assert await superuser.fetchval("select count(*) from public.accounts") == 1
