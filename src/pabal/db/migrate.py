"""Migrates a database to the schema of this Pabal version, one file per transaction.

Each transaction takes the lock, reads which files are applied and applies the next one, so several migrators may run at
once and each file is applied exactly once. The lock is transaction-level, because session locks do not work through a
pooler.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg

from pabal.core.errors import MigrationError, Unavailable
from pabal.db.errors import CONNECTION_ERRORS, summarize_error
from pabal.db.pool import INVALID_URL_TEXT
from pabal.db.schema import (
    AppliedMigration,
    Migration,
    MigrationStatus,
    check_migration_status,
    check_migration_target,
    check_server_version,
    compare_migrations,
    load_migrations,
)

if TYPE_CHECKING:
    MigrationConnection = asyncpg.Connection[asyncpg.Record]

__all__ = [
    "AppliedMigration",
    "Migration",
    "MigrationStatus",
    "apply_migrations",
    "load_migrations",
    "read_migration_status",
    "revert_migrations",
]

MIGRATION_LOCK_ID = 0x7061_6261_6C  # "pabal"
LOCK_TIMEOUT = timedelta(minutes=2)
LOCK_POLL_INTERVAL = timedelta(milliseconds=100)


async def apply_migrations(
    url: str,
    *,
    login: str | None = None,
    to: str | None = None,
    progress: Callable[[Migration], None] | None = None,
    settings: Mapping[str, str] | None = None,
    folder: Path | None = None,
    lock_timeout: timedelta = LOCK_TIMEOUT,
) -> list[Migration]:
    """Apply the pending migrations up to `to` and grant service_role to `login`; returns the migrations applied."""
    known = load_migrations(folder)
    check_migration_target(to, known)
    applied: list[Migration] = []
    async with _connect_for_migration(url) as conn:
        while True:
            async with _locked_transaction(conn, lock_timeout):
                status = await _read_status(conn, known)
                check_migration_status(status, known)
                migration = next((m for m in status.pending if to is None or m.version <= to), None)
                if migration is not None:
                    await _apply_one(conn, migration, settings or {})
            if migration is None:
                break
            applied.append(migration)
            if progress is not None:
                progress(migration)
        if login is not None:
            async with conn.transaction():
                await _grant_service_role(conn, login)
    return applied


async def revert_migrations(
    url: str,
    *,
    to: str | None = None,
    progress: Callable[[Migration], None] | None = None,
    folder: Path | None = None,
    lock_timeout: timedelta = LOCK_TIMEOUT,
) -> list[Migration]:
    """Revert all migrations newer than `to`, or all without `to`, newest first; returns the migrations reverted."""
    known = load_migrations(folder)
    check_migration_target(to, known)
    by_version = {migration.version: migration for migration in known}
    reverted: list[Migration] = []
    async with _connect_for_migration(url) as conn:
        while True:
            async with _locked_transaction(conn, lock_timeout):
                status = await _read_status(conn, known)
                check_migration_status(status, known)
                newest = max((row.version for row in status.applied if to is None or row.version > to), default=None)
                if newest is not None:
                    await _revert_one(conn, by_version[newest], last=len(status.applied) == 1)
            if newest is None:
                break
            reverted.append(by_version[newest])
            if progress is not None:
                progress(by_version[newest])
    return reverted


async def read_migration_status(url: str, *, folder: Path | None = None) -> MigrationStatus:
    """Compare the database with the migration files, without changing it."""
    known = load_migrations(folder)
    async with _connect_for_migration(url) as conn, conn.transaction(readonly=True):
        return await _read_status(conn, known)


@asynccontextmanager
async def _connect_for_migration(url: str) -> "AsyncGenerator[MigrationConnection]":
    try:
        conn = await asyncpg.connect(url, statement_cache_size=0, timeout=15)
        try:
            check_server_version(conn.get_server_version().major)
            yield conn
        finally:
            await conn.close()
    except CONNECTION_ERRORS as error:
        raise Unavailable(f"the database is not available: {summarize_error(error)}") from error
    except ValueError as error:  # the driver cannot parse the URL; its message contains the password
        raise Unavailable(INVALID_URL_TEXT) from error
    except asyncpg.PostgresError as error:
        raise MigrationError(str(error)) from error


@asynccontextmanager
async def _locked_transaction(conn: "MigrationConnection", lock_timeout: timedelta) -> AsyncGenerator[None]:
    """Hold the lock for one transaction. Waits while another migrator holds it."""
    clock = asyncio.get_running_loop()
    deadline = clock.time() + lock_timeout.total_seconds()
    while True:
        async with conn.transaction():
            if await conn.fetchval("select pg_try_advisory_xact_lock($1)", MIGRATION_LOCK_ID):
                yield
                return
        if clock.time() >= deadline:
            raise MigrationError(f"another migration has held the lock for {lock_timeout.total_seconds():.0f} s")
        await asyncio.sleep(LOCK_POLL_INTERVAL.total_seconds())


async def _read_status(conn: "MigrationConnection", known: tuple[Migration, ...]) -> MigrationStatus:
    rows: list[asyncpg.Record] = []
    if await conn.fetchval("select to_regclass('pabal.schema_migrations') is not null"):
        rows = await conn.fetch(
            "select version, name, checksum, applied_at from pabal.schema_migrations order by version"
        )
    return compare_migrations(known, tuple(AppliedMigration(*row) for row in rows))


async def _apply_one(conn: "MigrationConnection", migration: Migration, settings: Mapping[str, str]) -> None:
    for table in migration.created_tables():
        if await conn.fetchval("select to_regclass($1) is not null", table):
            raise MigrationError(
                f"table {table} already exists and does not belong to Pabal: rename it, or use a separate database"
            )
    for name, value in settings.items():
        await conn.execute("select set_config($1, $2, true)", name, value)
    await _execute_file(conn, migration.file_name, migration.sql)
    # After the file, because the first one creates the schema.
    await conn.execute(_CREATE_MIGRATIONS_TABLE)
    await conn.execute(
        "insert into pabal.schema_migrations (version, name, checksum) values ($1, $2, $3)",
        migration.version,
        migration.name,
        migration.checksum,
    )


_CREATE_MIGRATIONS_TABLE = """
create schema if not exists pabal;
do $$
begin
  if to_regclass('pabal.schema_migrations') is null then
    create table pabal.schema_migrations (
      version text primary key,
      name text not null,
      checksum text not null,
      applied_at timestamptz not null default clock_timestamp()
    );
    comment on table pabal.schema_migrations is 'The migrations applied to this database.';
    comment on column pabal.schema_migrations.version is 'The time in the file''s name.';
    comment on column pabal.schema_migrations.name is 'The rest of the file''s name.';
    comment on column pabal.schema_migrations.checksum is 'SHA-256 of the file as it was applied.';
    comment on column pabal.schema_migrations.applied_at is 'When it was applied.';
    alter table pabal.schema_migrations enable row level security;
    if to_regrole('service_role') is not null then
      create policy "schema_migrations_service_role_all" on pabal.schema_migrations
        for all to service_role using (true) with check (true);
      revoke all on table pabal.schema_migrations from public, anon, authenticated;
      grant select on table pabal.schema_migrations to service_role;
    end if;
  end if;
end
$$;
"""


async def _revert_one(conn: "MigrationConnection", migration: Migration, *, last: bool) -> None:
    if not migration.down_sql:
        raise MigrationError(f"{migration.file_name} has no rollback")
    # Before the file, because the first one drops the schema.
    if last:
        await conn.execute("drop table pabal.schema_migrations")
    else:
        await conn.execute("delete from pabal.schema_migrations where version = $1", migration.version)
    await _execute_file(conn, f"down/{migration.file_name}", migration.down_sql)


async def _execute_file(conn: "MigrationConnection", file: str, sql: str) -> None:
    try:
        await conn.execute(sql)
    except CONNECTION_ERRORS:
        raise
    except asyncpg.PostgresError as error:
        position = getattr(error, "position", None)
        line = f" line {sql.count(chr(10), 0, int(position)) + 1}" if position else ""
        raise MigrationError(f"{file}{line}: {error}") from error


async def _grant_service_role(conn: "MigrationConnection", login: str) -> None:
    """Make the hub's login role an inheriting member of service_role, so that policies apply without SET ROLE."""
    role = await conn.fetchrow("select rolsuper, rolinherit from pg_roles where rolname = $1", login)
    if role is None:
        raise MigrationError(f"role {login} does not exist")
    if role["rolsuper"] or await conn.fetchval("select pg_has_role($1::name, 'service_role', 'usage')", login):
        return
    if not role["rolinherit"]:
        raise MigrationError(f"role {login} is NOINHERIT; run: alter role {login} inherit")
    await conn.execute(await conn.fetchval("select format('grant service_role to %I', $1::text)", login))
