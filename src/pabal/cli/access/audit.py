"""`pabal audit list|verify`."""

import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import cyclopts
import msgspec
from cyclopts import Parameter
from rich.text import Text

from pabal.audit.log import AuditFilter, AuditLogEntry, list_audit_log
from pabal.cli.context import run_query, with_hub
from pabal.cli.examples import examples
from pabal.cli.options import DEFAULT_CONNECTION, Connection, Cursor, Json, Limit
from pabal.cli.output import (
    local_time,
    print_error,
    print_json,
    print_page,
    print_text,
    replace_unprintable,
    stdout_console,
)
from pabal.cli.time_range import ANY_TIME, ListPage, TimeRange, read_range
from pabal.db.tx import Tx

if TYPE_CHECKING:
    from pabal.audit.verify import VerifyReport
    from pabal.hub import Hub

app = cyclopts.App(
    name="audit",
    help="Read the audit log and verify that it was not tampered with.",
    help_epilogue=examples("audit list --since 1h", "audit verify"),
)

COLUMNS = ("id", "at", "actor", "action", "subject", "details", "from")
HEAD_PATTERN = re.compile(r"(\d+):([0-9a-f]{64})", re.ASCII)


def parse_head_option(_type: Any, tokens: Sequence[cyclopts.Token]) -> str:
    head = tokens[0].value.strip().lower()
    if not HEAD_PATTERN.fullmatch(head):
        raise ValueError("must be ID:DIGEST, as `pabal audit verify` prints it")
    return head


@app.command(
    name="list", help_epilogue=examples("audit list --actor cli:mina --since 1h", "audit list --action token. --json")
)
def audit_list(
    *,
    actor: Annotated[str | None, Parameter(help="Only actions of this actor.")] = None,
    action: Annotated[str | None, Parameter(help="Only this action, or actions that begin with it: token.")] = None,
    subject: Annotated[str | None, Parameter(help="Only actions on this subject.")] = None,
    time_range: TimeRange = ANY_TIME,
    limit: Limit = 50,
    cursor: Cursor = None,
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """List audit log entries, newest first."""

    async def read(tx: Tx) -> ListPage:
        from pabal.events.dead_letters import database_now

        bounds = await time_range.bounds(tx)
        age = await database_now(tx) - bounds.since if bounds.since else None
        criteria = AuditFilter(actor, action, subject, age)
        return await read_range(
            lambda start: list_audit_log(tx, criteria, limit, start), bounds, lambda entry: entry.at, cursor
        )

    page = run_query(connection, read)
    print_page(page.items, page.cursor, COLUMNS, audit_cells, empty="No entries.", json=json)


def audit_cells(entry: AuditLogEntry) -> tuple[object, ...]:
    return (
        entry.id,
        local_time(entry.at),
        entry.actor,
        entry.action,
        entry.subject or "",
        msgspec.json.encode(entry.details).decode() if entry.details else "",
        entry.client_ip or "",
    )


@app.command(name="verify", help_epilogue=examples("audit verify", f"audit verify --head 42:{'ab' * 32}"))
def audit_verify(
    *,
    head: Annotated[
        str | None, Parameter(converter=parse_head_option, help="A head printed earlier: check that it is still there.")
    ] = None,
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """Verify the audit log against its seals. Exits with 1 if they do not match."""
    from pabal.audit.verify import ChainHead, verify_audit_log

    row_id, _, digest = (head or "").partition(":")
    expected = ChainHead(int(row_id), digest) if head else None

    async def verify(hub: "Hub") -> "VerifyReport":
        async with hub.autocommit() as tx:
            return await verify_audit_log(tx, hub.key_ring, expected)

    report = with_hub(connection, verify)
    if json:
        print_json(asdict(report))
    else:
        print_verification(report)
    if report.broken:
        sys.exit(1)


def print_verification(report: "VerifyReport") -> None:
    for problem in report.breaks:
        print_error(replace_unprintable(problem.what))
    if report.broken > len(report.breaks):
        print_error(f"and {report.broken - len(report.breaks)} more")
    print_text(f"{report.rows} rows in {report.seals} seals, {report.unsealed} not sealed yet")
    if report.ahead:
        print_text(f"{report.ahead} seals are missing after the last one: a crash, or the chain was cut", "yellow")
    if report.head:
        print_text(f"head {report.head}")
        print_text("Keep it somewhere else. `pabal audit verify --head` checks that the chain still contains it.")
    stdout_console.print(Text("broken", "red") if report.broken else Text("intact", "green"))
