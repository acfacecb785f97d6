"""`pabal audit list|verify|accept-restore`."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import cyclopts
import msgspec
from cyclopts import Parameter
from rich.text import Text

from pabal.audit.chain_head import ChainHead, parse_chain_head
from pabal.audit.log import AuditFilter, AuditLogEntry, list_audit_log
from pabal.cli.context import cli_actor, run_query, with_hub
from pabal.cli.examples import examples
from pabal.cli.options import DEFAULT_CONNECTION, Connection, Cursor, Json, Limit, SkipConfirmation, refuse_arguments
from pabal.cli.output import (
    ask_confirmation,
    local_time,
    print_error,
    print_json,
    print_page,
    print_text,
    replace_unprintable,
    stdout_console,
)
from pabal.cli.time_range import ANY_TIME, ListPage, TimeRange, read_range
from pabal.core.errors import Conflict
from pabal.db.tx import Tx

if TYPE_CHECKING:
    from pabal.audit.verify import VerifyReport
    from pabal.hub import Hub

app = cyclopts.App(
    name="audit",
    help="Read and verify the audit log.\n\nVerification shows whether the log was tampered with.",
    help_epilogue=examples("audit list --since 1h", "audit verify"),
)

COLUMNS = ("id", "at", "actor", "action", "subject", "details", "from")


def check_head_option(_type: Any, tokens: Sequence[cyclopts.Token]) -> str:
    if parse_chain_head(tokens[0].value) is None:
        raise ValueError("must be ID:COUNT:DIGEST, as `pabal audit verify` prints it")
    return tokens[0].value


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
        from pabal.events.dead_letters.dead_letters import database_now

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


@app.command(name="verify", help_epilogue=examples("audit verify", f"audit verify --head 42:7:{'ab' * 32}"))
def audit_verify(
    *,
    head: Annotated[
        str | None,
        Parameter(converter=check_head_option, help="Also check that this earlier head is still in the log."),
    ] = None,
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """Verify the audit log against its seals and the head that this host knows. Exits with 1 if they do not match."""
    from pabal.audit.verify import verify_audit_log

    noted = parse_chain_head(head) if head else None

    async def verify(hub: "Hub") -> "tuple[VerifyReport, ChainHead | None]":
        known = hub.audit_sealer.head_file.read()
        async with hub.autocommit() as tx:
            return await verify_audit_log(tx, hub.key_ring, [*filter(None, (noted, known))]), known

    report, known = with_hub(connection, verify)
    if json:
        print_json(asdict(report) | {"known_head": asdict(known) if known else None})
    else:
        print_verification(report, known)
    if report.broken:
        sys.exit(1)


@app.command(
    name="accept-restore",
    help_epilogue=examples(
        "audit accept-restore --reason 'Restored the backup of 3 May after a disk failure'",
        "audit accept-restore --reason 'Fail-over to the standby' --yes",
    ),
)
def audit_accept_restore(
    *,
    reason: Annotated[str, Parameter(help="Why the log differs. It is kept in the audit log.")],
    yes: SkipConfirmation = False,
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """Accept the audit log of a restored database, which lacks seals that this host has seen.

    The hub seals the log again afterwards. Run it on every host that reports the problem, and only if the database was
    restored: otherwise the log was tampered with.
    """
    from pabal.audit.restore import (
        accept_restored_chain,
        check_restore_reason,
        find_restore_problem,
        seal_restored_log,
    )

    with refuse_arguments("--reason"):
        check_restore_reason(reason)

    async def accept(hub: "Hub") -> ChainHead:
        head_file = hub.audit_sealer.head_file
        problem = await find_restore_problem(hub.db, hub.key_ring, head_file)
        question = f"{replace_unprintable(problem)}. Was this database restored from a backup?"
        if not yes and not ask_confirmation(question):
            raise Conflict("Nothing accepted")
        head = await accept_restored_chain(hub.db, hub.key_ring, head_file, cli_actor(), reason)
        await seal_restored_log(hub.db, hub.audit_sealer)
        return head

    head = with_hub(connection, accept)
    if json:
        print_json({"head": asdict(head) if head.id else None})
    else:
        print_text(f"accepted; head {head}" if head.id else "accepted; the log has no seals")


def print_verification(report: "VerifyReport", known: ChainHead | None) -> None:
    for problem in report.breaks:
        print_error(replace_unprintable(problem.what))
    if report.broken > len(report.breaks):
        print_error(f"and {report.broken - len(report.breaks)} more")
    print_text(f"{report.rows} rows in {report.seals} seals, {report.unsealed} not sealed yet")
    if report.ahead:
        print_text(f"{report.ahead} seals are missing after the last one: a crash, or the chain was cut", "yellow")
    if report.head and known is None:
        print_text("this host has stored no head: only --head shows whether the chain was replaced", "yellow")
    if report.head:
        print_text(f"head {report.head}")
        print_text("Keep it somewhere else. `pabal audit verify --head` checks that the chain still contains it.")
    stdout_console.print(Text("broken", "red") if report.broken else Text("intact", "green"))
