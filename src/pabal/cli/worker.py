"""`pabal worker list`."""

from dataclasses import asdict

import cyclopts

from pabal.cli.context import with_hub
from pabal.cli.options import DatabaseUrl, DataDir, Json
from pabal.cli.output import local_time, print_json, print_table
from pabal.core.messages import duration_message
from pabal.hub import Hub
from pabal.queue.processes import ProcessInfo, list_processes

app = cyclopts.App(name="worker", help="The processes at work on this database.")


@app.command(name="list")
def worker_list(*, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Show the processes at work, the longest first; one that died unheard is struck off after two minutes."""

    async def look(hub: Hub) -> list[ProcessInfo]:
        async with hub.autocommit() as tx:
            return await list_processes(tx)

    found = with_hub(look, data_dir=data_dir, database_url=database_url)
    if json:
        print_json([asdict(each) | {"silent": each.silent.total_seconds()} for each in found])
        return
    print_table(
        ("worker", "version", "lanes", "handles", "holds", "started", "last seen"),
        [
            (
                each.id,
                each.details.get("version", ""),
                " ".join(each.lanes),
                each.handler_summary,
                each.details.get("holds", ""),
                local_time(each.started_at),
                f"{duration_message(each.silent)} ago",
            )
            for each in found
        ],
        empty="No workers.",
    )
