"""Apply and revert migrations, each in a transaction of its own.

Every step takes the lock, reads which migrations are applied and applies the next one, so several processes may migrate
at once and each file is applied exactly once. The lock belongs to the transaction: session locks do not work through a
transaction pooler.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg

from pabal.core.errors import MigrationError, Unavailable
from pabal.db.connect import INVALID_URL_TEXT, HostDialer
from pabal.db.errors import CONNECTION_ERRORS, summarize_error
from pabal.db.login_settings import reset_planner_settings, store_planner_settings
from pabal.db.preflight import Collision, check_collisions, find_collisions
from pabal.db.schema import (
    AppliedMigration,
    Migration,
    MigrationStatus,
    SquashBridge,
    check_migration_status,
    check_migration_target,
    check_server_version,
    compare_migrations,
    load_bridge,
    load_migrations,
)

if TYPE_CHECKING:
    from pabal.db.login_settings import MigrationConnection

__all__ = [
    "AppliedMigration",
    "Migration",
    "MigrationStatus",
    "apply_migrations",
    "load_migrations",
    "preflight_migrations",
    "read_migration_status",
    "revert_migrations",
]

MIGRATION_LOCK_ID = 0x7061_6261_6C  # "pabal"
LOCK_TIMEOUT = timedelta(minutes=2)
LOCK_POLL_INTERVAL = timedelta(milliseconds=100)
TABLE_LOCK_TIMEOUT = timedelta(seconds=3)
"""How long a migration waits for a lock on a table. Other sessions that use the table wait behind it."""
TABLE_LOCK_PAUSE = timedelta(seconds=1)
"""The pause before the next try, in which those who waited go on."""
CONNECT_TIMEOUT = timedelta(seconds=15)


async def apply_migrations(
    url: str,
    *,
    login: str | None = None,
    to: str | None = None,
    progress: Callable[[Migration], None] | None = None,
    settings: Mapping[str, str] | None = None,
    folder: Path | None = None,
    lock_timeout: timedelta = LOCK_TIMEOUT,
    table_lock_timeout: timedelta = TABLE_LOCK_TIMEOUT,
) -> list[Migration]:
    """Apply the pending migrations up to and including `to`, and grant `login` the service role.

    Returns the migrations that this call applied. A database of the development version is moved to the present
    migrations first, all of them at once. A migration that waits too long for a lock on a table is rolled back and
    tried again, for `lock_timeout` after the one before.
    """
    known, bridge = load_migrations(folder), load_bridge(folder)
    check_migration_target(to, known)
    done: list[Migration] = []
    loop = asyncio.get_running_loop()
    async with connect_for_migration(url) as conn:
        deadline = loop.time() + lock_timeout.total_seconds()
        while True:
            try:
                async with locked_transaction(conn, lock_timeout):
                    await _limit_table_locks(conn, table_lock_timeout)
                    applied = await _apply_next(conn, known, bridge, to, settings or {}, is_first=not done)
            except asyncpg.LockNotAvailableError as error:
                await _pause_for_locks(deadline, error)
                continue
            if not applied:
                break
            done += applied
            deadline = loop.time() + lock_timeout.total_seconds()  # an earlier one may have taken minutes
            if progress is not None:
                for migration in applied:
                    progress(migration)
        if login is not None:
            await prepare_login(conn, login)
    return done


async def revert_migrations(
    url: str,
    *,
    to: str | None = None,
    progress: Callable[[Migration], None] | None = None,
    folder: Path | None = None,
    lock_timeout: timedelta = LOCK_TIMEOUT,
) -> list[Migration]:
    """Revert every migration newer than `to`, or all of them, newest first. Returns what this call reverted."""
    known, bridge = load_migrations(folder), load_bridge(folder)
    check_migration_target(to, known)
    by_version = {migration.version: migration for migration in known}
    done: list[Migration] = []
    async with connect_for_migration(url) as conn:
        while True:
            async with locked_transaction(conn, lock_timeout):
                status = await read_applied_migrations(conn, known, bridge)
                check_migration_status(status, known)
                if status.needs_bridge:
                    raise MigrationError(
                        "the database was migrated by a development version of Pabal: run `pabal migrate up` first"
                    )
                newest = max((row.version for row in status.applied if to is None or row.version > to), default=None)
                if newest is not None:
                    await _revert_one(conn, by_version[newest], last=len(status.applied) == 1)
            if newest is None:
                break
            done.append(by_version[newest])
            if progress is not None:
                progress(by_version[newest])
    return done


async def read_migration_status(url: str, *, folder: Path | None = None) -> MigrationStatus:
    """Compare the database with the migration files, in a read-only transaction."""
    async with connect_for_migration(url) as conn, conn.transaction(readonly=True):
        return await read_applied_migrations(conn, load_migrations(folder), load_bridge(folder))


async def preflight_migrations(url: str, *, folder: Path | None = None) -> list[Collision]:
    """List everything that the pending migrations would collide with, in a read-only transaction."""
    known, bridge = load_migrations(folder), load_bridge(folder)
    async with connect_for_migration(url) as conn, conn.transaction(readonly=True):
        status = await read_applied_migrations(conn, known, bridge)
        check_migration_status(status, known)
        return await _find_status_collisions(conn, known, status, None)


async def _apply_next(
    conn: "MigrationConnection",
    known: tuple[Migration, ...],
    bridge: SquashBridge | None,
    to: str | None,
    settings: Mapping[str, str],
    *,
    is_first: bool,
) -> tuple[Migration, ...]:
    """Apply the next pending migration, or all of them to a database of the development version; return them."""
    status = await read_applied_migrations(conn, known, bridge)
    check_migration_status(status, known)
    if is_first:
        check_collisions(await _find_status_collisions(conn, known, status, to))
    if status.needs_bridge and bridge is not None:
        if to is not None and to < known[-1].version:
            raise MigrationError(
                "the database was migrated by a development version of Pabal and can only be moved to the newest"
                " migration: run `pabal migrate up` without a target"
            )
        await _apply_bridge(conn, bridge, known)
        return known
    pending = tuple(m for m in status.pending if to is None or m.version <= to)[:1]
    for migration in pending:
        await apply_migration(conn, migration, settings)
    return pending


async def _pause_for_locks(deadline: float, error: asyncpg.LockNotAvailableError) -> None:
    """Let the sessions that waited behind the migration go on. Raises MigrationError after the deadline."""
    if asyncio.get_running_loop().time() >= deadline:
        raise MigrationError(f"another transaction holds a table that the migration needs: {error}") from error
    await asyncio.sleep(TABLE_LOCK_PAUSE.total_seconds())


async def _limit_table_locks(conn: "MigrationConnection", timeout: timedelta) -> None:
    """Limit the wait for each lock on a table, for the rest of the transaction."""
    milliseconds = max(1, round(timeout.total_seconds() * 1000))
    await conn.execute("select set_config('lock_timeout', $1, true)", str(milliseconds))


async def _find_status_collisions(
    conn: "MigrationConnection", known: tuple[Migration, ...], status: MigrationStatus, to: str | None
) -> list[Collision]:
    if status.needs_bridge:  # its tables have the names of the present ones
        return []
    pending = [migration for migration in status.pending if to is None or migration.version <= to]
    return await find_collisions(conn, [migration for migration in known if migration not in pending], pending)


@asynccontextmanager
async def connect_for_migration(url: str) -> "AsyncGenerator[MigrationConnection]":
    """Connect to a server that is new enough. Errors of the database are raised as those of a migration."""
    try:
        conn = await HostDialer(url, CONNECT_TIMEOUT).dial({"statement_cache_size": 0})
        try:
            check_server_version(conn.get_server_version().major)
            yield conn
        finally:
            await conn.close()
    except CONNECTION_ERRORS as error:
        raise Unavailable(f"the database is not available: {summarize_error(error)}") from error
    except ValueError as error:  # asyncpg quotes the invalid URL in the message, with its password
        raise Unavailable(INVALID_URL_TEXT) from error
    except asyncpg.PostgresError as error:
        raise MigrationError(str(error)) from error


@asynccontextmanager
async def locked_transaction(conn: "MigrationConnection", timeout: timedelta) -> AsyncGenerator[None]:
    """Hold the lock for one transaction; wait while another migration holds it."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout.total_seconds()
    while True:
        async with conn.transaction():
            if await conn.fetchval("select pg_try_advisory_xact_lock($1)", MIGRATION_LOCK_ID):
                yield
                return
        if loop.time() >= deadline:
            holder = await conn.fetchval(_FIND_LOCK_HOLDER, MIGRATION_LOCK_ID)
            raise MigrationError(
                f"another session has held the lock of migrations for {timeout.total_seconds():.0f} s"
                + (f": {holder}" if holder else "")
            )
        await asyncio.sleep(LOCK_POLL_INTERVAL.total_seconds())


async def read_applied_migrations(
    conn: "MigrationConnection", known: tuple[Migration, ...], bridge: SquashBridge | None
) -> MigrationStatus:
    """Compare the migrations that the database records with the files."""
    rows: list[asyncpg.Record] = []
    if await conn.fetchval("select to_regclass('pabal.schema_migrations') is not null"):
        rows = await conn.fetch(
            "select version, name, checksum, applied_at from pabal.schema_migrations order by version"
        )
    return compare_migrations(known, tuple(AppliedMigration(*row) for row in rows), bridge)


async def apply_migration(conn: "MigrationConnection", migration: Migration, settings: Mapping[str, str]) -> None:
    """Run a file and record it, in the caller's transaction."""
    for table in migration.created_tables():
        if await conn.fetchval("select to_regclass($1) is not null", table):
            raise MigrationError(
                f"table {table} exists and is not Pabal's; rename it, or use another database for Pabal"
            )
    for name, value in settings.items():
        await conn.execute("select set_config($1, $2, true)", name, value)
    await _execute_file(conn, migration.file_name, migration.sql)
    # After the file: the first one creates the schema and records that it did.
    await conn.execute(_CREATE_MIGRATIONS_TABLE)
    await _record_migration(conn, migration)


async def _apply_bridge(conn: "MigrationConnection", bridge: SquashBridge, known: tuple[Migration, ...]) -> None:
    await _execute_file(conn, "bridge/rename.sql", bridge.sql)
    for migration in known:
        await _execute_file(conn, migration.file_name, migration.sql)
    await conn.execute(_CREATE_MIGRATIONS_TABLE)
    await conn.execute("delete from pabal.schema_migrations")
    for migration in known:
        await _record_migration(conn, migration)


async def _record_migration(conn: "MigrationConnection", migration: Migration) -> None:
    await conn.execute(
        "insert into pabal.schema_migrations (version, name, checksum) values ($1, $2, $3)",
        migration.version,
        migration.name,
        migration.checksum,
    )


_FIND_LOCK_HOLDER = """
select format('role %s, process %s', a.usename, a.pid)
from pg_locks l
join pg_stat_activity a on a.pid = l.pid
where l.locktype = 'advisory' and l.granted and l.objsubid = 1
  and l.database = (select oid from pg_database where datname = current_database())
  and l.classid::bigint << 32 | l.objid::bigint = $1
"""

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
comment on table pabal.schema_migrations is 'Migrations applied to this database.';
comment on column pabal.schema_migrations.version is 'Timestamp in the file name.';
comment on column pabal.schema_migrations.name is 'Description in the file name.';
comment on column pabal.schema_migrations.checksum is 'SHA-256 of the applied file.';
comment on column pabal.schema_migrations.applied_at is 'When it was applied.';
"""


async def _revert_one(conn: "MigrationConnection", migration: Migration, *, last: bool) -> None:
    if not migration.down_sql:
        raise MigrationError(f"{migration.file_name} has no rollback")
    # Before the file: the first one drops the schema.
    if last:
        await reset_planner_settings(conn)
        await conn.execute("drop table pabal.schema_migrations")
    else:
        await conn.execute("delete from pabal.schema_migrations where version = $1", migration.version)
    await _execute_file(conn, f"down/{migration.file_name}", migration.down_sql)


async def _execute_file(conn: "MigrationConnection", file: str, sql: str) -> None:
    try:
        await conn.execute(sql)
    except (*CONNECTION_ERRORS, asyncpg.LockNotAvailableError):
        raise
    except asyncpg.PostgresError as error:
        position = getattr(error, "position", None)
        line = f" line {sql.count(chr(10), 0, int(position)) + 1}" if position else ""
        raise MigrationError(f"{file}{line}: {error}") from error


async def prepare_login(conn: "MigrationConnection", login: str) -> None:
    """Grant the hub's login the service role, and store its planner settings."""
    async with conn.transaction():
        await _grant_service_role(conn, login)
        await store_planner_settings(conn, login)


async def _grant_service_role(conn: "MigrationConnection", login: str) -> None:
    """Make the hub's login an inheriting member of service_role, so that the policies apply without SET ROLE."""
    role = await conn.fetchrow("select rolsuper, rolinherit from pg_roles where rolname = $1", login)
    if role is None:
        raise MigrationError(f"No such role: {login}")
    if role["rolsuper"] or await conn.fetchval("select pg_has_role($1::name, 'service_role', 'usage')", login):
        return
    if not role["rolinherit"]:
        raise MigrationError(f"role {login} does not inherit; run: alter role {login} inherit")
    await conn.execute(await conn.fetchval("select format('grant service_role to %I', $1::text)", login))
