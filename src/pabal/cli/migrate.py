"""`pabal migrate up|down|status`."""

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated

import cyclopts
from cyclopts import Parameter

from pabal.cli import screen
from pabal.cli.options import DatabaseUrl, DataDir, Json
from pabal.cli.roads import Ground, at_hand
from pabal.core import log
from pabal.core.errors import Failed, Refused
from pabal.db import migrate
from pabal.db.schema import check_status
from pabal.settings import Settings, read

app = cyclopts.App(name="migrate", help="Bring the database's schema up, down, or show where it stands.")

Step = Callable[[migrate.Migration], None]
To = Annotated[str | None, Parameter(help="Stop at this version (YYYYMMDDHHMMSS).")]


@app.command
def up(*, to: To = None, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Apply what is pending."""
    settings = read(data_dir=data_dir, database_url=database_url)
    log.configure(settings.log_level, settings.log_format)
    with at_hand(settings) as ground, steps("migrating") as step:
        done = asyncio.run(bring_up(settings, ground, to=to, progress=step))
    report("applied", done, json=json)


@app.command
def down(
    *,
    to: To = None,
    yes: Annotated[bool, Parameter(help="Do it: tables and what is in them go.")] = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Take migrations back, newest first: all of them, or those newer than --to. Data goes with the tables."""
    if not yes:
        raise Refused("this drops tables and what is in them; say --yes to do it")
    settings = read(data_dir=data_dir, database_url=database_url)
    log.configure(settings.log_level, settings.log_format)
    with at_hand(settings) as ground, steps("taking back") as step:
        done = asyncio.run(migrate.down(straight(ground), to=to, progress=step))
    report("taken back", done, json=json)


@app.command
def status(*, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Show what is applied and what is pending, and what should not be there."""
    settings = read(data_dir=data_dir, database_url=database_url)
    log.configure(settings.log_level, settings.log_format)
    with at_hand(settings) as ground:
        found = asyncio.run(migrate.status(straight(ground)))
    changed, unknown = {each.version for each in found.changed}, {each.version for each in found.unknown}
    rows: list[tuple[str, str, str, datetime | None]] = []
    for each in found.applied:
        state = "unknown" if each.version in unknown else "changed" if each.version in changed else "applied"
        rows.append((each.version, each.name, state, each.applied_at))
    rows += [(each.version, each.name, "pending", None) for each in found.pending]
    if json:
        screen.as_json([dict(zip(("version", "name", "state", "applied_at"), row, strict=True)) for row in rows])
    else:
        screen.table(
            ("version", "name", "state", "applied"),
            [(*row[:3], f"{row[3]:%Y-%m-%d %H:%M:%S %Z}" if row[3] else "") for row in rows],
            empty="No migrations.",
        )


async def bring_up(
    settings: Settings, ground: Ground, *, to: str | None = None, progress: Step | None = None
) -> list[migrate.Migration]:
    sample = {"pabal.sample_data": "on"} if settings.sample_data else {}
    return await migrate.up(straight(ground), login=ground.login, to=to, settings=sample, progress=progress)


async def insist(ground: Ground) -> None:
    """Go no further on a schema that is not the one this Pabal was written for."""
    found = await migrate.status(straight(ground))
    check_status(found, migrate.shipped())
    if found.pending:
        raise Failed(f"{len(found.pending)} migrations are pending: run `pabal migrate up` first")


def straight(ground: Ground) -> str:
    """The road that leads past any pooler, if there is one."""
    return ground.roads.direct or ground.roads.work


@contextmanager
def steps(doing: str) -> Generator[Step]:
    with screen.bar(doing, len(migrate.shipped())) as step:
        yield lambda _: step(1)


def report(what: str, done: list[migrate.Migration], *, json: bool) -> None:
    if json:
        screen.as_json([{"version": each.version, "name": each.name} for each in done])
    elif done:
        screen.table(("version", what), [(each.version, each.name) for each in done])
    else:
        screen.say("nothing to do")
