"""`pabal conversation export|erase`."""

from typing import Annotated

import cyclopts
from cyclopts import Parameter

from pabal.cli.belongings import To, Yes, hand_over, wipe
from pabal.cli.errand import actor, in_transaction
from pabal.cli.options import DatabaseUrl, DataDir, Json
from pabal.core.actor import Actor
from pabal.relay import erase as erasing
from pabal.relay.erase import Holdings, holdings
from pabal.relay.export import export as gather

app = cyclopts.App(name="conversation", help="Everything of one person on one channel: take it along, or erase it.")

Key = Annotated[str, Parameter(name="KEY", help="The conversation: CHANNEL:USER.")]


@app.command
def export(key: Key, /, *, to: To = None, data_dir: DataDir = None, database_url: DatabaseUrl = None) -> None:
    """Write down everything the hub has of a conversation: one JSON document."""
    document = in_transaction(lambda tx: gather(tx, key, Actor(actor())), data_dir, database_url)
    hand_over(document, f"{len(document['messages'])} messages", to)


@app.command
def erase(
    key: Key,
    /,
    *,
    yes: Yes = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Erase everything the hub has of a conversation. The person may pair again, as somebody new."""
    wipe(
        lambda tx: holdings(tx, key),
        lambda tx: erasing.erase(tx, key, Actor(actor())),
        in_words,
        yes=yes,
        json=json,
        data_dir=data_dir,
        database_url=database_url,
    )


def in_words(found: Holdings) -> str:
    return (
        f"{found.rows} rows ({found.messages} messages, {found.replies} replies, {found.events} events, "
        f"{found.dead_letters} dead letters, {found.others} others)"
    )
