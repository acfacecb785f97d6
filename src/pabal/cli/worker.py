"""`pabal worker list`."""

from dataclasses import asdict

import cyclopts

from pabal.cli import screen, wide
from pabal.cli.errand import errand
from pabal.cli.options import DatabaseUrl, DataDir, Json
from pabal.core.phrase import lasting
from pabal.queue import roll
from pabal.queue.roll import Entry
from pabal.wiring import Hub

app = cyclopts.App(name="worker", help="The processes at work on this database.")


@app.command(name="list")
def listing(*, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Show the processes at work, the longest first; one that died unheard is struck off after two minutes."""

    async def look(hub: Hub) -> list[Entry]:
        async with hub.autocommit() as tx:
            return await roll.every(tx)

    found = errand(look, data_dir=data_dir, database_url=database_url)
    if json:
        screen.as_json([asdict(each) | {"silent": each.silent.total_seconds()} for each in found])
        return
    screen.table(
        ("worker", "version", "lanes", "handles", "holds", "started", "last seen"),
        [
            (
                each.id,
                each.details.get("version", ""),
                " ".join(each.lanes),
                each.handles,
                each.details.get("holds", ""),
                wide.local(each.started_at),
                f"{lasting(each.silent)} ago",
            )
            for each in found
        ],
        empty="No workers.",
    )
