"""What a transaction pooler takes away: session settings, prepared statements, and cheap type lookups."""

from collections.abc import AsyncGenerator
from pathlib import Path

import asyncpg
import pytest

import pabal
from pabal.core.finding import FindingLevel
from pabal.db.connect import PLANNER_SETTINGS, ConnectOptions, HostDialer, connect_arguments, probe_server
from pabal.db.migrate import apply_migrations, revert_migrations
from pabal.db.pool import declare_types
from pabal.db.queries import Query, parse_queries
from pabal.doctor.doctor import run_checks
from pabal.hub import DatabaseUrls, open_hub
from pabal.settings import Settings
from support.clusters import Cluster, Connection, open_connection
from support.fault_proxy import FaultProxy, StartupSettings, run_fault_proxy

pytestmark = pytest.mark.anyio

PACKAGE = Path(pabal.__file__).parent
COUNT_PREPARED, UUIDS = parse_queries("""
-- name: count_prepared
select count(*) from pg_prepared_statements
-- name: uuids
select :ids::uuid[]
""")
STORED_SETTINGS = """
select coalesce((
  select s.setconfig from pg_db_role_setting s join pg_database d on d.oid = s.setdatabase
  where d.datname = current_database() and s.setrole = $1::text::regrole), '{}')
"""
OUR_SETTINGS = [f"{name}={setting}" for name, setting in PLANNER_SETTINGS.items()]


@pytest.fixture
async def pooler(database_urls: DatabaseUrls) -> AsyncGenerator[tuple[FaultProxy, DatabaseUrls]]:
    """A pooler that refuses session settings, and a direct URL beside it."""
    async with run_fault_proxy(database_urls.main) as (proxy, url):
        proxy.settings = StartupSettings.REFUSED
        yield proxy, DatabaseUrls(url, database_urls.direct)


def all_queries() -> list[Query]:
    files = [file for file in sorted(PACKAGE.rglob("*.sql")) if "migrations" not in file.parts]
    return [query for file in files for query in parse_queries(file.read_text(encoding="utf-8"), file.name)]


async def test_no_statement_makes_the_driver_look_up_types(database_urls: DatabaseUrls) -> None:
    options = ConnectOptions(database_urls.main, pooler=True)
    connection = await HostDialer(options.url, options.connect_timeout).dial(
        connect_arguments(options, await probe_server(options))
    )
    executed: list[str] = []
    try:
        await declare_types(connection)
        connection.add_query_logger(lambda record: executed.append(record.query))
        queries = all_queries()
        for query in queries:
            await connection.prepare(query.sql)
    finally:
        connection.terminate()

    assert len(queries) > 100
    assert executed == []


async def test_declared_arrays_are_read_and_written_like_others(database_urls: DatabaseUrls) -> None:
    values = {
        "bool": [True, None],
        "int2": [1],
        "int4": [-5],
        "int8": [1 << 40],
        "float8": [1.5],
        "bytea": [b"\0x"],
        "jsonb": [{"a": [1]}],
    }
    options = ConnectOptions(database_urls.main)
    connection = await HostDialer(options.url, options.connect_timeout).dial(
        connect_arguments(options, await probe_server(options))
    )
    try:
        await declare_types(connection)
        for name, array in values.items():
            assert await connection.fetchval(f"select $1::{name}[]", array) == array
        for text in ("{10.0.0.1}", "{2026-01-01 00:00:00+00}", "{01:00:00}", "{1.50}"):
            name = {"{10": "inet", "{20": "timestamptz", "{01": "interval", "{1.": "numeric"}[text[:3]]
            [element] = await connection.fetchval(f"select '{text}'::{name}[]")
            assert await connection.fetchval(f"select $1::{name}[] = '{text}'::{name}[]", [element])
    finally:
        connection.terminate()


@pytest.mark.parametrize(("prepared", "kept"), [(False, 0), (True, 1)])
async def test_statements_stay_prepared_only_if_the_pooler_keeps_them(
    pooler: tuple[FaultProxy, DatabaseUrls], settings: Settings, prepared: bool, kept: int
) -> None:
    _, urls = pooler
    async with open_hub(settings.model_copy(update={"database_prepared": prepared}), urls) as hub:
        assert hub.db.server_info.pooler
        async with hub.autocommit() as tx:
            await tx.value(UUIDS, ids=[])
            assert (await tx.value(COUNT_PREPARED) >= 1) == bool(kept)


async def test_a_migration_stores_the_planner_settings_of_the_hubs_own_login(server: Cluster) -> None:
    url = await server.fresh_database()
    async with open_connection(url) as conn:
        await conn.execute('create role "Own Login" login')
        await apply_migrations(url, login="Own Login")
        await apply_migrations(url, login="Own Login")

        assert await conn.fetchval(STORED_SETTINGS, '"Own Login"') == OUR_SETTINGS
        async with open_connection(server.url(url.rpartition("/")[2], "Own Login")) as session:
            assert await session.fetchval("show jit") == "off"

        await revert_migrations(url)

        assert await conn.fetchval(STORED_SETTINGS, '"Own Login"') == []
        await conn.execute('drop role "Own Login"')


@pytest.mark.parametrize(
    "shared_by",
    [
        "create table public.of_another_program (); alter table public.of_another_program owner to shared_login",
        "create role other_role; grant other_role to shared_login",
        "alter role shared_login createrole",
    ],
)
async def test_the_settings_of_a_shared_login_are_not_changed(server: Cluster, shared_by: str) -> None:
    url = await server.fresh_database()
    async with open_connection(url) as conn:
        await conn.execute("create role shared_login login")
        await conn.execute(shared_by)
        try:
            await apply_migrations(url, login="shared_login")

            assert await conn.fetchval(STORED_SETTINGS, "shared_login") == []
        finally:
            await conn.execute("drop owned by shared_login; drop role shared_login; drop role if exists other_role")


async def test_the_settings_of_a_login_in_use_by_another_program_are_not_changed(server: Cluster) -> None:
    url = await server.fresh_database()
    async with open_connection(url) as conn:
        await conn.execute("create role shared_login login")
        program = await asyncpg.connect(
            server.url(url.rpartition("/")[2], "shared_login"), server_settings={"application_name": "shop"}
        )
        await apply_migrations(url, login="shared_login")
        await program.close()

        assert await conn.fetchval(STORED_SETTINGS, "shared_login") == []
        await conn.execute("drop owned by shared_login; drop role shared_login")


async def test_the_doctor_names_the_statements_for_a_login_behind_a_pooler(
    pooler: tuple[FaultProxy, DatabaseUrls], settings: Settings, owner: Connection
) -> None:
    _, urls = pooler
    database = await owner.fetchval("select current_database()")

    findings = {finding.what: finding for finding in await run_checks(settings, urls)}
    assert findings["planner settings"].level is FindingLevel.WARNING
    assert f"alter role pabal_hub in database {database} set jit = off" in str(findings["planner settings"].advice)

    for name, setting in PLANNER_SETTINGS.items():
        await owner.execute(f"alter role pabal_hub in database {database} set {name} = {setting}")
    findings = {finding.what: finding for finding in await run_checks(settings, urls)}
    assert findings["planner settings"].level is FindingLevel.GOOD
