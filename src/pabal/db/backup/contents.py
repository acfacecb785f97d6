"""What a database contains: tables with their rows, migrations and roles, as one snapshot shows them."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import asyncpg

from pabal.core.errors import BackupError, Conflict, Unavailable
from pabal.db.backup.programs import ProgramAddress
from pabal.db.connect import HostDialer
from pabal.db.errors import CONNECTION_ERRORS, summarize_error
from pabal.db.migrate import CONNECT_TIMEOUT
from pabal.db.schema import AppliedMigration, load_migrations

if TYPE_CHECKING:
    from pabal.db.connect import HubConnection


LIST_TABLES_SQL = """
select format('%I.%I', n.nspname, c.relname)
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind = 'r' and c.relpersistence <> 't'
  and n.nspname <> 'information_schema' and left(n.nspname, 3) <> 'pg_'
  and not exists (
    select from pg_depend d where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype = 'e')
order by 1
"""
LIST_ROLES_SQL = """
select distinct r.rolname::text
from pg_shdepend d join pg_roles r on r.oid = d.refobjid
where d.refclassid = 'pg_authid'::regclass and d.deptype in ('a', 'r')
  and d.dbid = (select oid from pg_database where datname = current_database())
  and left(r.rolname, 3) <> 'pg_' and not r.rolsuper
order by 1
"""
"""Roles that privileges or policies of this database name."""


@dataclass(frozen=True, slots=True)
class DatabaseContents:
    """The contents of a hub's database."""

    server_major: int
    migrations: Sequence[AppliedMigration]
    roles: Sequence[str]
    rows: dict[str, int]
    """The number of rows of each table."""


@dataclass(frozen=True, slots=True)
class ExportedSnapshot:
    """A snapshot that other sessions can use while the transaction that exported it is open."""

    id: str
    address: ProgramAddress
    contents: DatabaseContents


@asynccontextmanager
async def connect_for_backup(url: str) -> "AsyncGenerator[HubConnection]":
    try:
        connection = await HostDialer(url, CONNECT_TIMEOUT).dial({"statement_cache_size": 0})
        try:
            yield connection
        finally:
            await connection.close()
    except CONNECTION_ERRORS as error:
        raise Unavailable(f"the database is not available: {summarize_error(error)}") from error
    except asyncpg.PostgresError as error:
        raise BackupError(str(error)) from error


@asynccontextmanager
async def export_snapshot(url: str) -> AsyncGenerator[ExportedSnapshot]:
    """Export a snapshot of the database, and read its contents in it."""
    async with connect_for_backup(url) as connection, connection.transaction(isolation="repeatable_read"):
        await connection.execute("set local statement_timeout = 0; set local idle_in_transaction_session_timeout = 0")
        snapshot: str = await connection.fetchval("select pg_export_snapshot()")
        address = ProgramAddress.of_url(url, connection.host)
        yield ExportedSnapshot(snapshot, address, await read_contents(connection))


async def read_contents(connection: "HubConnection") -> DatabaseContents:
    if not await connection.fetchval("select to_regclass('pabal.schema_migrations') is not null"):
        raise Conflict("the database contains no hub: run `pabal migrate up` or `pabal up` first")
    migrations = await connection.fetch(
        "select version, name, checksum, applied_at from pabal.schema_migrations order by version"
    )
    return DatabaseContents(
        server_major=connection.get_server_version().major,
        migrations=tuple(AppliedMigration(*row) for row in migrations),
        roles=tuple(row[0] for row in await connection.fetch(LIST_ROLES_SQL)),
        rows=await count_rows(connection),
    )


async def count_rows(connection: "HubConnection") -> dict[str, int]:
    tables = [row[0] for row in await connection.fetch(LIST_TABLES_SQL)]
    return {table: await connection.fetchval(f"select count(*) from {table}") for table in tables}  # noqa: S608  # quoted by the query above


async def require_empty_database(connection: "HubConnection") -> None:
    """Refuse a database that has any table of a hub."""
    names = {"pabal.schema_migrations", *(name for file in load_migrations() for name in file.created_tables())}
    tables = await connection.fetch(
        "select name from unnest($1::text[]) name where to_regclass(name) is not null", names
    )
    if tables:
        raise Conflict(
            f"the database is not empty: it has {len(tables)} tables of a hub, such as "
            f"{min(row[0] for row in tables)}; restore into an empty database or another data directory"
        )


async def require_no_hub_sessions(url: str) -> None:
    """Refuse a database that a hub still uses: what it writes after the snapshot would be lost."""
    async with connect_for_backup(url) as connection:
        sessions = await connection.fetchval(
            "select count(*) from pg_stat_activity where application_name = 'pabal' and datname = current_database()"
        )
    if sessions:
        raise Conflict(f"{sessions} sessions of a hub use the database: stop `pabal serve` and `pabal work` first")


async def create_missing_roles(connection: "HubConnection", roles: Sequence[str]) -> list[str]:
    """Create the roles that do not exist, without login. Returns their names."""
    missing = [role for role in roles if not await connection.fetchval("select to_regrole(quote_ident($1))", role)]
    async with connection.transaction():
        for role in missing:
            await connection.execute(
                await connection.fetchval("select format('create role %I nologin', $1::text)", role)
            )
    return missing


async def drop_roles(connection: "HubConnection", roles: Sequence[str]) -> None:
    async with connection.transaction():
        for role in roles:
            await connection.execute(
                await connection.fetchval("select format('drop role if exists %I', $1::text)", role)
            )


async def check_loaded_rows(url: str, expected: dict[str, int]) -> None:
    """Compare the number of rows of each table with the snapshot's, then update the planner's statistics."""
    async with connect_for_backup(url) as connection:
        rows = await count_rows(connection)
        differences = [
            f"{table} has {rows.get(table, 0)} rows instead of {count}"
            for table, count in expected.items()
            if rows.get(table) != count
        ]
        if differences:
            raise BackupError(f"the loaded data differs from the dump: {'; '.join(differences)}")
        await connection.execute("analyze")
