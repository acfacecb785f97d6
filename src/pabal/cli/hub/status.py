"""`pabal status`."""

import sys
from dataclasses import asdict
from typing import Any

from rich.text import Text

from pabal import __version__
from pabal.cli.context import run_query
from pabal.cli.database_settings import load_database_settings
from pabal.cli.hub.finding_output import LEVEL_STYLES
from pabal.cli.options import DEFAULT_CONNECTION, Connection, Json
from pabal.cli.output import print_json, print_table, print_text, stdout_console
from pabal.core.finding import Finding, FindingLevel
from pabal.core.messages import duration_message
from pabal.db.tx import Tx
from pabal.status import HubStatus, LaneProgress, check_free_space, read_status, status_findings

LANE_COLUMNS = ("lane", "waiting", "oldest", "in flight", "done/min", "drains in", "dead")


def status_command(*, connection: Connection = DEFAULT_CONNECTION, json: Json = False) -> None:
    """Show the state of the hub and what needs attention.

    Exits with 1 if something needs attention.
    """
    from pabal.maintenance import check_chore_runs
    from pabal.queue.chores import list_recorded_runs

    async def read(tx: Tx) -> tuple[HubStatus, Finding]:
        return await read_status(tx), check_chore_runs(await list_recorded_runs(tx))

    status, chores = run_query(connection, read)
    disk = check_free_space(load_database_settings(connection).data_dir)
    findings = [*status_findings(status), chores, disk]
    if json:
        print_json(status_document(status, findings))
    else:
        print_status(status, findings)
    if needs_person(findings):
        sys.exit(1)


def needs_person(findings: list[Finding]) -> bool:
    return any(finding.level is not FindingLevel.GOOD for finding in findings)


def status_document(status: HubStatus, findings: list[Finding]) -> dict[str, Any]:
    return {
        "needs_person": needs_person(findings),
        "version": __version__,
        "hubs": [
            {"id": process.id, "version": process.details.version, "lanes": process.lanes}
            for process in status.hubs_at_work
        ],
        "lanes": [lane_document(item) for item in status.lanes],
        "silent_consumers": [
            {
                "service": consumer.service,
                "waiting": consumer.waiting,
                "oldest_seconds": consumer.oldest_due.total_seconds(),
                "claimed_seconds_ago": consumer.claimed_ago.total_seconds() if consumer.claimed_ago else None,
                "is_active": consumer.is_active,
            }
            for consumer in status.silent_consumers
        ],
        "failing_receivers": [asdict(receiver) for receiver in status.failing_receivers],
        "blocked_keys": [
            {
                "service": key.service,
                "ordering_key": key.ordering_key,
                "event_id": key.event_id,
                "waiting": key.waiting,
                "next_try_seconds": key.next_try.total_seconds(),
            }
            for key in status.blocked_keys
        ],
        "stopped_receivers": [asdict(backlog) for backlog in status.backlogs],
        "plain_claims": status.plain_claims.count,
        "findings": [asdict(finding) for finding in findings],
    }


def lane_document(item: LaneProgress) -> dict[str, Any]:
    lane = item.lane
    return {
        "name": lane.name,
        "waiting": lane.waiting,
        "blocked": item.blocked,
        "oldest_seconds": lane.oldest_due.total_seconds(),
        "in_flight": lane.in_flight,
        "dead": lane.dead,
        "done_per_minute": item.done_per_minute,
        "drain_seconds": item.drain_time.total_seconds() if item.drain_time else None,
    }


def print_status(status: HubStatus, findings: list[Finding]) -> None:
    hubs = ", ".join(f"{process.id} {process.details.version or ''}".strip() for process in status.hubs_at_work)
    print_text(f"pabal {__version__}, hubs running: {hubs or 'none'}")
    print_table(LANE_COLUMNS, [lane_cells(item) for item in status.lanes])
    for finding in findings:
        label = "ok" if finding.level is FindingLevel.GOOD else "check"
        line = Text.assemble((f"{label:6}", LEVEL_STYLES[finding.level]), (finding.what, "bold"), f": {finding.seen}")
        stdout_console.print(line)
        if finding.advice:
            print_text(f"      → {finding.advice}")


def lane_cells(item: LaneProgress) -> tuple[object, ...]:
    lane = item.lane
    return (
        lane.name,
        lane.waiting,
        duration_message(lane.oldest_due) if lane.waiting else "",
        lane.in_flight,
        f"{item.done_per_minute:.1f}",
        duration_message(item.drain_time) if item.drain_time else "",
        lane.dead,
    )
