"""`pabal conversation export|erase`."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import cyclopts
import msgspec
from cyclopts import Parameter

from pabal.cli import screen
from pabal.cli.dead import agreed
from pabal.cli.errand import actor, errand
from pabal.cli.options import DatabaseUrl, DataDir, Json
from pabal.core.actor import Actor
from pabal.core.errors import Conflict, Invalid
from pabal.relay.erase import Holdings, holdings
from pabal.relay.erase import erase as wipe
from pabal.relay.export import export as gather
from pabal.wiring import Hub

app = cyclopts.App(name="conversation", help="Everything of one person on one channel: take it along, or erase it.")

Key = Annotated[str, Parameter(name="KEY", help="The conversation: CHANNEL:USER.")]


@app.command
def export(
    key: Key,
    /,
    *,
    to: Annotated[Path | None, Parameter(help="A new file that only you can read. Default: standard output.")] = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Write down everything the hub has of a conversation: one JSON document."""

    async def look(hub: Hub) -> dict[str, Any]:
        async with hub.transaction() as tx:
            return await gather(tx, key, Actor(actor()))

    document = errand(look, data_dir=data_dir, database_url=database_url)
    if to is None:
        screen.as_json(document)
        return
    with private(to) as file:
        file.write(msgspec.json.format(msgspec.json.encode(document)) + b"\n")
    screen.say(f"{len(document['messages'])} messages written to {to}")


@app.command
def erase(
    key: Key,
    /,
    *,
    yes: Annotated[bool, Parameter(negative="", help="Do not ask.")] = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Erase everything the hub has of a conversation. The person may pair again, as somebody new."""

    async def look(hub: Hub) -> Holdings:
        async with hub.autocommit() as tx:
            return await holdings(tx, key)

    async def do(hub: Hub) -> Holdings:
        async with hub.transaction() as tx:
            return await wipe(tx, key, Actor(actor()))

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
    return (
        f"{found.rows} rows ({found.messages} messages, {found.replies} replies, {found.events} events, "
        f"{found.dead_letters} dead letters, {found.others} others)"
    )


def private(path: Path) -> BinaryIO:
    """A file nobody else can read, where none was before."""
    try:
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
    except OSError as error:
        raise Invalid.one("to", f"{path} cannot be made: {error.strerror}") from None
