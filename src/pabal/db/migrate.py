"""Brings a database to the schema this Pabal was written for, one file and one transaction at a time.

Each turn takes the lock, reads what is applied and does the next thing, so any number of migrators may run at once and
each file is applied exactly once. The lock belongs to the transaction: session locks do not survive a pooler.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg

from pabal.core.errors import MigrationRefused, Unavailable
from pabal.db.faults import AWAY, short
from pabal.db.pool import UNREADABLE
from pabal.db.schema import Applied, Migration, Status, check_status, check_target, check_version, compare, shipped

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]

__all__ = ["Applied", "Migration", "Status", "down", "shipped", "status", "up"]

LOCK = 0x7061_6261_6C  # "pabal"
PATIENCE = timedelta(minutes=2)
PAUSE = timedelta(milliseconds=100)


async def up(
    url: str,
    *,
    login: str | None = None,
    to: str | None = None,
    progress: Callable[[Migration], None] | None = None,
    settings: Mapping[str, str] | None = None,
    folder: Path | None = None,
    patience: timedelta = PATIENCE,
) -> list[Migration]:
    """Apply what is pending, up to and including `to`, and let `login` work; return what was applied now."""
    known = shipped(folder)
    check_target(to, known)
    done: list[Migration] = []
    async with _connected(url) as conn:
        while True:
            async with _turn(conn, patience):
                status = await _status(conn, known)
                check_status(status, known)
                migration = next((m for m in status.pending if to is None or m.version <= to), None)
                if migration is not None:
                    await _apply(conn, migration, settings or {})
            if migration is None:
                break
            done.append(migration)
            if progress is not None:
                progress(migration)
        if login is not None:
            async with conn.transaction():
                await _admit(conn, login)
    return done


async def down(
    url: str,
    *,
    to: str | None = None,
    progress: Callable[[Migration], None] | None = None,
    folder: Path | None = None,
    patience: timedelta = PATIENCE,
) -> list[Migration]:
    """Take back everything newer than `to`, newest first, or all of it; return what was taken back now."""
    known = shipped(folder)
    check_target(to, known)
    by_version = {migration.version: migration for migration in known}
    done: list[Migration] = []
    async with _connected(url) as conn:
        while True:
            async with _turn(conn, patience):
                status = await _status(conn, known)
                check_status(status, known)
                newest = max((row.version for row in status.applied if to is None or row.version > to), default=None)
                if newest is not None:
                    await _revert(conn, by_version[newest], last=len(status.applied) == 1)
            if newest is None:
                break
            done.append(by_version[newest])
            if progress is not None:
                progress(by_version[newest])
    return done


async def status(url: str, *, folder: Path | None = None) -> Status:
    """Say how the database stands, and touch nothing."""
    known = shipped(folder)
    async with _connected(url) as conn, conn.transaction(readonly=True):
        return await _status(conn, known)


@asynccontextmanager
async def _connected(url: str) -> "AsyncGenerator[Connection]":
    try:
        conn = await asyncpg.connect(url, statement_cache_size=0, timeout=15)
        try:
            check_version(conn.get_server_version().major)
            yield conn
        finally:
            await conn.close()
    except AWAY as error:
        raise Unavailable(f"the database is not available: {short(error)}") from error
    except ValueError as error:  # the driver's word for an address, and it quotes it, password and all
        raise Unavailable(UNREADABLE) from error
    except asyncpg.PostgresError as error:
        raise MigrationRefused(str(error)) from error


@asynccontextmanager
async def _turn(conn: "Connection", patience: timedelta) -> AsyncGenerator[None]:
    """Hold the lock for one transaction, waiting while another migrator has it."""
    clock = asyncio.get_running_loop()
    deadline = clock.time() + patience.total_seconds()
    while True:
        async with conn.transaction():
            if await conn.fetchval("select pg_try_advisory_xact_lock($1)", LOCK):
                yield
                return
        if clock.time() >= deadline:
            raise MigrationRefused(f"another migration has held the lock for {patience.total_seconds():.0f} s")
        await asyncio.sleep(PAUSE.total_seconds())


async def _status(conn: "Connection", known: tuple[Migration, ...]) -> Status:
    rows: list[asyncpg.Record] = []
    if await conn.fetchval("select to_regclass('pabal.schema_migrations') is not null"):
        rows = await conn.fetch(
            "select version, name, checksum, applied_at from pabal.schema_migrations order by version"
        )
    return compare(known, tuple(Applied(*row) for row in rows))


async def _apply(conn: "Connection", migration: Migration, settings: Mapping[str, str]) -> None:
    for table in migration.creates():
        if await conn.fetchval("select to_regclass($1) is not null", table):
            raise MigrationRefused(
                f"table {table} exists and is not Pabal's; rename it, or give Pabal a database of its own"
            )
    for name, value in settings.items():
        await conn.execute("select set_config($1, $2, true)", name, value)
    await _run(conn, migration.file, migration.sql)
    # After the file, which may be the one that makes the schema and notes that it did.
    await conn.execute(_BOOKS)
    await conn.execute(
        "insert into pabal.schema_migrations (version, name, checksum) values ($1, $2, $3)",
        migration.version,
        migration.name,
        migration.checksum,
    )


_BOOKS = """
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


async def _revert(conn: "Connection", migration: Migration, *, last: bool) -> None:
    if not migration.down:
        raise MigrationRefused(f"{migration.file} has no rollback")
    # Before the file, which may be the one that drops the schema.
    if last:
        await conn.execute("drop table pabal.schema_migrations")
    else:
        await conn.execute("delete from pabal.schema_migrations where version = $1", migration.version)
    await _run(conn, f"down/{migration.file}", migration.down)


async def _run(conn: "Connection", file: str, sql: str) -> None:
    try:
        await conn.execute(sql)
    except AWAY:
        raise
    except asyncpg.PostgresError as error:
        position = getattr(error, "position", None)
        line = f" line {sql.count(chr(10), 0, int(position)) + 1}" if position else ""
        raise MigrationRefused(f"{file}{line}: {error}") from error


async def _admit(conn: "Connection", login: str) -> None:
    """Make the hub's login an inheriting member of service_role, so that its policies apply without SET ROLE."""
    role = await conn.fetchrow("select rolsuper, rolinherit from pg_roles where rolname = $1", login)
    if role is None:
        raise MigrationRefused(f"there is no role {login} to work as")
    if role["rolsuper"] or await conn.fetchval("select pg_has_role($1::name, 'service_role', 'usage')", login):
        return
    if not role["rolinherit"]:
        raise MigrationRefused(f"role {login} does not inherit; run: alter role {login} inherit")
    await conn.execute(await conn.fetchval("select format('grant service_role to %I', $1::text)", login))
