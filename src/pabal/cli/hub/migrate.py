"""`pabal migrate up|down|status|preflight`."""

import asyncio
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import Annotated

import cyclopts
from cyclopts import Parameter

from pabal.cli.database_settings import database_settings
from pabal.cli.examples import examples
from pabal.cli.options import DEFAULT_CONNECTION, Connection, Json, UsageError, flag
from pabal.cli.output import local_time, print_json_items, print_table, print_text, progress_bar
from pabal.cli.target import DatabaseTarget, attach_or_start_target
from pabal.core.log import configure_logging
from pabal.db import migrate
from pabal.db.migrate import apply_migrations, preflight_migrations, read_migration_status, revert_migrations
from pabal.settings import Settings, load_settings

app = cyclopts.App(
    name="migrate",
    help="Check, apply or revert schema migrations.",
    help_epilogue=examples("migrate preflight", "migrate up"),
)

MigrationCallback = Callable[[migrate.Migration], None]
ToVersionOption = Annotated[str | None, Parameter(help="Stop at this version (YYYYMMDDHHMMSS).")]
COLUMNS = ("version", "name", "state", "applied_at")


@app.command(name="up", help_epilogue=examples("migrate up", "migrate up --to 20260101000000"))
def migrate_up(*, to: ToVersionOption = None, connection: Connection = DEFAULT_CONNECTION, json: Json = False) -> None:
    """Apply pending migrations."""
    settings = load_migration_settings(connection)
    with target_of(settings) as target, migration_progress("migrating") as step:
        migrations = asyncio.run(migrate_target(settings, target, to=to, progress=step))
    print_migrations("applied", migrations, json=json)


@app.command(name="down", help_epilogue=examples("migrate down --to 20260101000000 --yes", "migrate down --yes"))
def migrate_down(
    *,
    to: ToVersionOption = None,
    yes: Annotated[bool, flag("Confirm that tables and their data are dropped.")] = False,
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """Revert migrations, newest first: all of them, or those newer than --to. Drops their tables with the data."""
    if not yes:
        raise UsageError("This drops tables and their data. Confirm with --yes")
    settings = load_migration_settings(connection)
    with target_of(settings) as target, migration_progress("reverting") as step:
        migrations = asyncio.run(revert_migrations(target.direct_url, to=to, progress=step))
    print_migrations("reverted", migrations, json=json)


@app.command(name="status", help_epilogue=examples("migrate status", "migrate status --json"))
def migrate_status(*, connection: Connection = DEFAULT_CONNECTION, json: Json = False) -> None:
    """Show applied and pending migrations, and unknown or changed ones."""
    with target_of(load_migration_settings(connection)) as target:
        status = asyncio.run(read_migration_status(target.direct_url))
    changed = {migration.version for migration in status.changed}
    unknown = {migration.version for migration in status.unknown}
    rows: list[tuple[str, str, str, datetime | None]] = []
    for migration in status.applied:
        version = migration.version
        state = "unknown" if version in unknown else "changed" if version in changed else "applied"
        rows.append((version, migration.name, state, migration.applied_at))
    rows += [(migration.version, migration.name, "pending", None) for migration in status.pending]
    if json:
        print_json_items(dict(zip(COLUMNS, row, strict=True)) for row in rows)
    else:
        table = [(version, name, state, local_time(applied_at)) for version, name, state, applied_at in rows]
        print_table(("version", "name", "state", "applied"), table, empty="No migrations.")


@app.command(name="preflight", help_epilogue=examples("migrate preflight", "migrate preflight --json"))
def migrate_preflight(*, connection: Connection = DEFAULT_CONNECTION, json: Json = False) -> None:
    """List everything in the database that pending migrations collide with. Changes nothing; exits with 1 if any."""
    with target_of(load_migration_settings(connection)) as target:
        collisions = asyncio.run(preflight_migrations(target.direct_url))
    if json:
        print_json_items(map(asdict, collisions))
    else:
        rows = [(collision.object, collision.problem, collision.advice) for collision in collisions]
        print_table(("object", "problem", "what to do"), rows, empty="No collisions.")
    if collisions:
        sys.exit(1)


def load_migration_settings(connection: Connection) -> Settings:
    settings = load_settings(data_dir=connection.data_dir, database_url=connection.database_url)
    configure_logging(settings.log_level, settings.log_format)
    return settings


@contextmanager
def target_of(settings: Settings) -> Generator[DatabaseTarget]:
    with attach_or_start_target(database_settings(settings)) as target:
        yield target


async def migrate_target(
    settings: Settings, target: DatabaseTarget, *, to: str | None = None, progress: MigrationCallback | None = None
) -> list[migrate.Migration]:
    sample = {"pabal.sample_data": "on"} if settings.sample_data else {}
    return await apply_migrations(target.direct_url, login=target.login, to=to, settings=sample, progress=progress)


@contextmanager
def migration_progress(label: str) -> Generator[MigrationCallback]:
    with progress_bar(label, len(migrate.load_migrations())) as step:
        yield lambda _: step(1)


def print_migrations(heading: str, migrations: list[migrate.Migration], *, json: bool) -> None:
    if json:
        print_json_items({"version": migration.version, "name": migration.name} for migration in migrations)
    elif migrations:
        print_table(("version", heading), [(migration.version, migration.name) for migration in migrations])
    else:
        print_text("Nothing to do.")
