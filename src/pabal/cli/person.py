"""`pabal notify export|erase`: everything of one person, taken along or erased."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from pabal.cli import screen
from pabal.cli.conversation import private
from pabal.cli.dead import agreed
from pabal.cli.errand import actor, errand
from pabal.cli.options import DatabaseUrl, DataDir, Json
from pabal.core.actor import Actor
from pabal.core.errors import Conflict
from pabal.notifications.erase import Holdings, holdings
from pabal.notifications.erase import erase as wipe
from pabal.notifications.export import export as gather
from pabal.wiring import Hub

Who = Annotated[str, Parameter(name="PERSON", help="The Discord user.")]


def export(
    person: Who,
    /,
    *,
    to: Annotated[Path | None, Parameter(help="A new file that only you can read. Default: standard output.")] = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Write down everything the hub has of a person: one JSON document."""

    async def look(hub: Hub) -> dict[str, Any]:
        async with hub.transaction() as tx:
            return await gather(tx, person, Actor(actor()))

    document = errand(look, data_dir=data_dir, database_url=database_url)
    if to is None:
        screen.as_json(document)
        return
    with private(to) as file:
        file.write(msgspec.json.format(msgspec.json.encode(document)) + b"\n")
    screen.say(f"{len(document['requests'])} notifications written to {to}")


def erase(
    person: Who,
    /,
    *,
    yes: Annotated[bool, Parameter(negative="", help="Do not ask.")] = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Erase everything the hub has of a person. What waits for them is not sent."""

    async def look(hub: Hub) -> Holdings:
        async with hub.autocommit() as tx:
            return await holdings(tx, person)

    async def do(hub: Hub) -> Holdings:
        async with hub.transaction() as tx:
            return await wipe(tx, person, Actor(actor()))

    if not yes:
        there = errand(look, data_dir=data_dir, database_url=database_url)
        if not agreed(f"Erase {in_words(there)}?"):
            raise Conflict("nothing was erased")
    gone = errand(do, data_dir=data_dir, database_url=database_url)
    if json:
        screen.as_json(asdict(gone) | {"rows": gone.rows})
    else:
        screen.say(f"{in_words(gone)} erased")


def in_words(found: Holdings) -> str:
    return f"{found.rows} rows ({found.requests} notifications, {found.toasts} toasts, {found.others} others)"
