"""`pabal migrate up|down|status`."""

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated

import cyclopts
from cyclopts import Parameter

from pabal.cli.options import DatabaseUrl, DataDir, Json
from pabal.cli.output import print_json, print_table, print_text, progress_bar
from pabal.cli.target import DatabaseTarget, attach_or_start_target
from pabal.core.errors import RequestError, SetupError
from pabal.core.log import configure_logging
from pabal.db import migrate
from pabal.db.migrate import apply_migrations, read_migration_status, revert_migrations
from pabal.db.schema import check_migration_status
from pabal.settings import Settings, load_settings

app = cyclopts.App(name="migrate", help="Bring the database's schema up, down, or show where it stands.")

MigrationCallback = Callable[[migrate.Migration], None]
ToVersionOption = Annotated[str | None, Parameter(help="Stop at this version (YYYYMMDDHHMMSS).")]


@app.command(name="up")
def migrate_up(
    *, to: ToVersionOption = None, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False
) -> None:
    """Apply what is pending."""
    settings = load_settings(data_dir=data_dir, database_url=database_url)
    configure_logging(settings.log_level, settings.log_format)
    with attach_or_start_target(settings) as ground, migration_progress("migrating") as step:
        done = asyncio.run(migrate_target(settings, ground, to=to, progress=step))
    print_migrations("applied", done, json=json)


@app.command(name="down")
def migrate_down(
    *,
    to: ToVersionOption = None,
    yes: Annotated[bool, Parameter(help="Do it: tables and what is in them go.")] = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Take migrations back, newest first: all of them, or those newer than --to. Data goes with the tables."""
    if not yes:
        raise RequestError("this drops tables and what is in them; say --yes to do it")
    settings = load_settings(data_dir=data_dir, database_url=database_url)
    configure_logging(settings.log_level, settings.log_format)
    with attach_or_start_target(settings) as ground, migration_progress("taking back") as step:
        done = asyncio.run(revert_migrations(direct_url(ground), to=to, progress=step))
    print_migrations("taken back", done, json=json)


@app.command(name="status")
def migrate_status(*, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Show what is applied and what is pending, and what should not be there."""
    settings = load_settings(data_dir=data_dir, database_url=database_url)
    configure_logging(settings.log_level, settings.log_format)
    with attach_or_start_target(settings) as ground:
        found = asyncio.run(read_migration_status(direct_url(ground)))
    changed, unknown = {each.version for each in found.changed}, {each.version for each in found.unknown}
    rows: list[tuple[str, str, str, datetime | None]] = []
    for each in found.applied:
        state = "unknown" if each.version in unknown else "changed" if each.version in changed else "applied"
        rows.append((each.version, each.name, state, each.applied_at))
    rows += [(each.version, each.name, "pending", None) for each in found.pending]
    if json:
        print_json([dict(zip(("version", "name", "state", "applied_at"), row, strict=True)) for row in rows])
    else:
        print_table(
            ("version", "name", "state", "applied"),
            [(*row[:3], f"{row[3]:%Y-%m-%d %H:%M:%S %Z}" if row[3] else "") for row in rows],
            empty="No migrations.",
        )


async def migrate_target(
    settings: Settings, target: DatabaseTarget, *, to: str | None = None, progress: MigrationCallback | None = None
) -> list[migrate.Migration]:
    sample = {"pabal.sample_data": "on"} if settings.sample_data else {}
    return await apply_migrations(direct_url(target), login=target.login, to=to, settings=sample, progress=progress)


async def require_current_schema(target: DatabaseTarget) -> None:
    """Go no further on a schema that is not the one this Pabal was written for."""
    found = await read_migration_status(direct_url(target))
    check_migration_status(found, migrate.load_migrations())
    if found.pending:
        raise SetupError(f"{len(found.pending)} migrations are pending: run `pabal migrate up` first")


def direct_url(target: DatabaseTarget) -> str:
    """The road that leads past any pooler, if there is one."""
    return target.urls.direct or target.urls.main


@contextmanager
def migration_progress(label: str) -> Generator[MigrationCallback]:
    with progress_bar(label, len(migrate.load_migrations())) as step:
        yield lambda _: step(1)


def print_migrations(heading: str, migrations: list[migrate.Migration], *, json: bool) -> None:
    if json:
        print_json([{"version": each.version, "name": each.name} for each in migrations])
    elif migrations:
        print_table(("version", heading), [(each.version, each.name) for each in migrations])
    else:
        print_text("nothing to do")
