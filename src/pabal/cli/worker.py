"""`pabal worker list`."""

from dataclasses import asdict

import cyclopts

from pabal.cli import screen, wide
from pabal.cli.errand import with_hub
from pabal.cli.options import DatabaseUrl, DataDir, Json
from pabal.core.phrase import duration_message
from pabal.queue import roll
from pabal.queue.roll import ProcessInfo
from pabal.wiring import Hub

app = cyclopts.App(name="worker", help="The processes at work on this database.")


@app.command(name="list")
def worker_list(*, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Show the processes at work, the longest first; one that died unheard is struck off after two minutes."""

    async def look(hub: Hub) -> list[ProcessInfo]:
        async with hub.autocommit() as tx:
            return await roll.list_processes(tx)

    found = with_hub(look, data_dir=data_dir, database_url=database_url)
    if json:
        screen.print_json([asdict(each) | {"silent": each.silent.total_seconds()} for each in found])
        return
    screen.print_table(
        ("worker", "version", "lanes", "handles", "holds", "started", "last seen"),
        [
            (
                each.id,
                each.details.get("version", ""),
                " ".join(each.lanes),
                each.handler_summary,
                each.details.get("holds", ""),
                wide.local_time(each.started_at),
                f"{duration_message(each.silent)} ago",
            )
            for each in found
        ],
        empty="No workers.",
    )
