"""`pabal notify export|erase`: everything of one person, taken along or erased."""

from typing import Annotated

from cyclopts import Parameter

from pabal.cli.belongings import ExportFileOption, YesOption, confirm_and_erase, write_export
from pabal.cli.errand import cli_actor, with_transaction
from pabal.cli.options import DatabaseUrl, DataDir, Json
from pabal.core.actor import Actor
from pabal.notifications import erase as erasing
from pabal.notifications.erase import PersonDataCounts, count_person_data
from pabal.notifications.export import export_person as gather

PersonArgument = Annotated[str, Parameter(name="PERSON", help="The Discord user.")]


def person_export(
    person: PersonArgument,
    /,
    *,
    to: ExportFileOption = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Write down everything the hub has of a person: one JSON document."""
    document = with_transaction(lambda tx: gather(tx, person, Actor(cli_actor())), data_dir, database_url)
    write_export(document, f"{len(document['requests'])} notifications", to)


def person_erase(
    person: PersonArgument,
    /,
    *,
    yes: YesOption = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Erase everything the hub has of a person. What waits for them is not sent."""
    confirm_and_erase(
        lambda tx: count_person_data(tx, person),
        lambda tx: erasing.erase_person(tx, person, Actor(cli_actor())),
        person_data_text,
        yes=yes,
        json=json,
        data_dir=data_dir,
        database_url=database_url,
    )


def person_data_text(holdings: PersonDataCounts) -> str:
    return (
        f"{holdings.total} rows ({holdings.requests} notifications, {holdings.toasts} toasts, {holdings.others} others)"
    )
