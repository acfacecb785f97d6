"""`pabal audit list|verify`."""

import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated, Any

import cyclopts
import msgspec
from cyclopts import Parameter
from rich.text import Text

from pabal.audit.history import Entry, Page, Wanted, history
from pabal.audit.verify import Verdict
from pabal.audit.verify import verify as examine
from pabal.audit.walk import Head
from pabal.cli import lists, screen
from pabal.cli.errand import errand
from pabal.cli.options import Cursor, DatabaseUrl, DataDir, Json, Limit, span
from pabal.wiring import Hub

app = cyclopts.App(name="audit", help="Who did what, and whether somebody tampered with it.")

COLUMNS = ("id", "at", "actor", "action", "subject", "details", "from")


def seal(_kind: Any, tokens: Sequence[cyclopts.Token]) -> Head:
    written = re.fullmatch(r"(\d+):([0-9a-f]{64})", tokens[0].value.strip().lower(), re.ASCII)
    if written is None:
        raise ValueError("is ID:DIGEST, as `pabal audit verify` prints it")
    return Head(int(written[1]), written[2])


Since = Annotated[timedelta | None, Parameter(converter=span, help="How far back: 90s, 15m, 2h, 7d.")]
Noted = Annotated[
    Head | None, Parameter(converter=seal, accepts_keys=False, n_tokens=1, help="A head noted down earlier.")
]


@app.command(name="list")
def listing(
    *,
    actor: Annotated[str | None, Parameter(help="Who did it.")] = None,
    action: Annotated[str | None, Parameter(help="What was done, or how that begins: token.")] = None,
    subject: Annotated[str | None, Parameter(help="What it was done to.")] = None,
    since: Since = None,
    limit: Limit = 50,
    cursor: Cursor = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Show what was done, newest first."""
    wanted = Wanted(actor, action, subject, since)

    async def look(hub: Hub) -> Page:
        async with hub.autocommit() as tx:
            return await history(tx, wanted, limit, cursor)

    page = errand(look, data_dir=data_dir, database_url=database_url)
    lists.page(page.items, page.cursor, COLUMNS, cells, empty="Nothing was done.", json=json)


def cells(deed: Entry) -> tuple[object, ...]:
    return (
        deed.id,
        f"{deed.at:%Y-%m-%d %H:%M:%S}",
        deed.actor,
        deed.action,
        deed.subject or "",
        msgspec.json.encode(deed.details).decode() if deed.details else "",
        deed.client_ip or "",
    )


@app.command
def verify(
    *, head: Noted = None, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False
) -> None:
    """Hold the log against its seals; say where they part. Exits with 1 if they do."""

    async def look(hub: Hub) -> Verdict:
        async with hub.autocommit() as tx:
            return await examine(tx, hub.keys, head)

    verdict = errand(look, data_dir=data_dir, database_url=database_url)
    if json:
        screen.as_json(asdict(verdict))
    else:
        tell(verdict)
    if verdict.broken:
        sys.exit(1)


def tell(verdict: Verdict) -> None:
    for each in verdict.breaks:
        screen.complain(screen.printable(each.what))
    if verdict.broken > len(verdict.breaks):
        screen.complain(f"and {verdict.broken - len(verdict.breaks)} more")
    screen.say(f"{verdict.rows} rows under {verdict.seals} seals, {verdict.unsealed} not sealed yet")
    if verdict.ahead:
        screen.say(f"{verdict.ahead} seals were counted after the last one: a crash, or the chain was cut", "yellow")
    if verdict.head:
        screen.say(f"head {verdict.head}")
        screen.say("Note it down elsewhere; --head will tell later whether the chain still contains it.")
    screen.out.print(Text("broken", "red") if verdict.broken else Text("good", "green"))
