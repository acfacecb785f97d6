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

from pabal.audit.log import AuditFilter, AuditLogEntry, AuditPage, list_audit_log
from pabal.audit.verify import ChainHead, VerifyReport
from pabal.audit.verify import verify_audit_log as examine
from pabal.cli.context import with_hub
from pabal.cli.options import Cursor, DatabaseUrl, DataDir, Json, Limit, parse_duration_option
from pabal.cli.output import print_error, print_json, print_page, print_text, replace_unprintable, stdout_console
from pabal.hub import Hub

app = cyclopts.App(name="audit", help="Who did what, and whether somebody tampered with it.")

COLUMNS = ("id", "at", "actor", "action", "subject", "details", "from")


def parse_audit_head(_kind: Any, tokens: Sequence[cyclopts.Token]) -> ChainHead:
    written = re.fullmatch(r"(\d+):([0-9a-f]{64})", tokens[0].value.strip().lower(), re.ASCII)
    if written is None:
        raise ValueError("is ID:DIGEST, as `pabal audit verify` prints it")
    return ChainHead(int(written[1]), written[2])


SinceOption = Annotated[
    timedelta | None, Parameter(converter=parse_duration_option, help="How far back: 90s, 15m, 2h, 7d.")
]
HeadOption = Annotated[
    ChainHead | None,
    Parameter(converter=parse_audit_head, accepts_keys=False, n_tokens=1, help="A head noted down earlier."),
]


@app.command(name="list")
def audit_list(
    *,
    actor: Annotated[str | None, Parameter(help="Who did it.")] = None,
    action: Annotated[str | None, Parameter(help="What was done, or how that begins: token.")] = None,
    subject: Annotated[str | None, Parameter(help="What it was done to.")] = None,
    since: SinceOption = None,
    limit: Limit = 50,
    cursor: Cursor = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Show what was done, newest first."""
    wanted = AuditFilter(actor, action, subject, since)

    async def look(hub: Hub) -> AuditPage:
        async with hub.autocommit() as tx:
            return await list_audit_log(tx, wanted, limit, cursor)

    page = with_hub(look, data_dir=data_dir, database_url=database_url)
    print_page(page.items, page.cursor, COLUMNS, audit_cells, empty="Nothing was done.", json=json)


def audit_cells(entry: AuditLogEntry) -> tuple[object, ...]:
    return (
        entry.id,
        f"{entry.at:%Y-%m-%d %H:%M:%S}",
        entry.actor,
        entry.action,
        entry.subject or "",
        msgspec.json.encode(entry.details).decode() if entry.details else "",
        entry.client_ip or "",
    )


@app.command(name="verify")
def audit_verify(
    *, head: HeadOption = None, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False
) -> None:
    """Hold the log against its seals; say where they part. Exits with 1 if they do."""

    async def look(hub: Hub) -> VerifyReport:
        async with hub.autocommit() as tx:
            return await examine(tx, hub.key_ring, head)

    verdict = with_hub(look, data_dir=data_dir, database_url=database_url)
    if json:
        print_json(asdict(verdict))
    else:
        print_verification(verdict)
    if verdict.broken:
        sys.exit(1)


def print_verification(verdict: VerifyReport) -> None:
    for each in verdict.breaks:
        print_error(replace_unprintable(each.what))
    if verdict.broken > len(verdict.breaks):
        print_error(f"and {verdict.broken - len(verdict.breaks)} more")
    print_text(f"{verdict.rows} rows under {verdict.seals} seals, {verdict.unsealed} not sealed yet")
    if verdict.ahead:
        print_text(f"{verdict.ahead} seals were counted after the last one: a crash, or the chain was cut", "yellow")
    if verdict.head:
        print_text(f"head {verdict.head}")
        print_text("Note it down elsewhere; --head will tell later whether the chain still contains it.")
    stdout_console.print(Text("broken", "red") if verdict.broken else Text("good", "green"))
