"""`pabal notify export|erase`: everything of one person, taken along or erased."""

from typing import Annotated

from cyclopts import Parameter

from pabal.cli.belongings import To, Yes, hand_over, wipe
from pabal.cli.errand import actor, in_transaction
from pabal.cli.options import DatabaseUrl, DataDir, Json
from pabal.core.actor import Actor
from pabal.notifications import erase as erasing
from pabal.notifications.erase import Holdings, holdings
from pabal.notifications.export import export as gather

Who = Annotated[str, Parameter(name="PERSON", help="The Discord user.")]


def export(person: Who, /, *, to: To = None, data_dir: DataDir = None, database_url: DatabaseUrl = None) -> None:
    """Write down everything the hub has of a person: one JSON document."""
    document = in_transaction(lambda tx: gather(tx, person, Actor(actor())), data_dir, database_url)
    hand_over(document, f"{len(document['requests'])} notifications", to)


def erase(
    person: Who,
    /,
    *,
    yes: Yes = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Erase everything the hub has of a person. What waits for them is not sent."""
    wipe(
        lambda tx: holdings(tx, person),
        lambda tx: erasing.erase(tx, person, Actor(actor())),
        in_words,
        yes=yes,
        json=json,
        data_dir=data_dir,
        database_url=database_url,
    )


def in_words(found: Holdings) -> str:
    return f"{found.rows} rows ({found.requests} notifications, {found.toasts} toasts, {found.others} others)"
