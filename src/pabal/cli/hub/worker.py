"""`pabal worker list`."""

from dataclasses import asdict

import cyclopts

from pabal.cli.context import run_query
from pabal.cli.examples import examples
from pabal.cli.options import DEFAULT_CONNECTION, Connection, Json
from pabal.cli.output import local_time, print_json_items, print_table
from pabal.core.messages import duration_message
from pabal.queue.processes import list_processes

app = cyclopts.App(
    name="worker",
    help="List the worker processes of this database.",
    help_epilogue=examples("worker list", "worker list --json"),
)


@app.command(name="list", help_epilogue=examples("worker list", "worker list --json"))
def worker_list(*, connection: Connection = DEFAULT_CONNECTION, json: Json = False) -> None:
    """List worker processes, oldest first. A process that died is removed after two minutes."""
    processes = run_query(connection, list_processes)
    if json:
        print_json_items(asdict(process) | {"silent": process.silent.total_seconds()} for process in processes)
        return
    print_table(
        ("worker", "version", "lanes", "handles", "in flight", "started", "last seen"),
        [
            (
                process.id,
                process.details.version or "",
                " ".join(process.lanes),
                process.handler_summary,
                "" if process.details.holds is None else process.details.holds,
                local_time(process.started_at),
                f"{duration_message(process.silent)} ago",
            )
            for process in processes
        ],
        empty="No workers.",
    )
