"""`pabal migrate up|down|status`."""

import asyncio
from typing import Annotated

import cyclopts
from cyclopts import Parameter
from rich.progress import Progress

from pabal.cli import screen
from pabal.cli.options import DatabaseUrl, DataDir, Json
from pabal.cli.roads import at_hand
from pabal.core import log
from pabal.core.errors import Refused
from pabal.db import migrate
from pabal.settings import read

app = cyclopts.App(name="migrate", help="Bring the database's schema up, down, or show where it stands.")

To = Annotated[str | None, Parameter(help="Stop at this version (YYYYMMDDHHMMSS).")]


@app.command
def up(*, to: To = None, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Apply what is pending."""
    settings = read(data_dir=data_dir, database_url=database_url)
    log.configure(settings.log_level, settings.log_format)
    with at_hand(settings) as ground, Progress(console=screen.err, transient=True) as progress:
        task = progress.add_task("migrating", total=len(migrate.shipped()))
        sample = {"pabal.sample_data": "on"} if settings.sample_data else {}
        done = asyncio.run(
            migrate.up(
                ground.roads.direct or ground.roads.work,
                login=ground.login,
                to=to,
                settings=sample,
                progress=lambda _: progress.advance(task),
            )
        )
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
    with at_hand(settings) as ground:
        done = asyncio.run(migrate.down(ground.roads.direct or ground.roads.work, to=to))
    report("taken back", done, json=json)


@app.command
def status(*, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Show what is applied and what is pending."""
    settings = read(data_dir=data_dir, database_url=database_url)
    log.configure(settings.log_level, settings.log_format)
    with at_hand(settings) as ground:
        found = asyncio.run(migrate.status(ground.roads.direct or ground.roads.work))
    rows = [(each.version, each.name, f"{each.applied_at:%Y-%m-%d %H:%M:%S}") for each in found.applied]
    rows += [(each.version, each.name, "pending") for each in found.pending]
    if json:
        screen.as_json([{"version": v, "name": n, "applied_at": None if at == "pending" else at} for v, n, at in rows])
    else:
        screen.table(("version", "name", "applied"), rows)


def report(what: str, done: list[migrate.Migration], *, json: bool) -> None:
    if json:
        screen.as_json([{"version": each.version, "name": each.name} for each in done])
    elif done:
        screen.table(("version", what), [(each.version, each.name) for each in done])
    else:
        screen.say("nothing to do")
