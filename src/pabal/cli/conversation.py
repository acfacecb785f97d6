"""`pabal conversation export|erase`."""

from typing import Annotated

import cyclopts
from cyclopts import Parameter

from pabal.cli.belongings import ExportFileOption, YesOption, confirm_and_erase, write_export
from pabal.cli.errand import cli_actor, with_transaction
from pabal.cli.options import DatabaseUrl, DataDir, Json
from pabal.core.actor import Actor
from pabal.relay import erase as erasing
from pabal.relay.erase import ConversationDataCounts, count_conversation_data
from pabal.relay.export import export_conversation as gather

conversation_app = cyclopts.App(
    name="conversation", help="Everything of one person on one channel: take it along, or erase it."
)

ConversationArgument = Annotated[str, Parameter(name="KEY", help="The conversation: CHANNEL:USER.")]


@conversation_app.command(name="export")
def conversation_export(
    key: ConversationArgument,
    /,
    *,
    to: ExportFileOption = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Write down everything the hub has of a conversation: one JSON document."""
    document = with_transaction(lambda tx: gather(tx, key, Actor(cli_actor())), data_dir, database_url)
    write_export(document, f"{len(document['messages'])} messages", to)


@conversation_app.command(name="erase")
def conversation_erase(
    key: ConversationArgument,
    /,
    *,
    yes: YesOption = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Erase everything the hub has of a conversation. The person may pair again, as somebody new."""
    confirm_and_erase(
        lambda tx: count_conversation_data(tx, key),
        lambda tx: erasing.erase_conversation(tx, key, Actor(cli_actor())),
        conversation_data_text,
        yes=yes,
        json=json,
        data_dir=data_dir,
        database_url=database_url,
    )


def conversation_data_text(holdings: ConversationDataCounts) -> str:
    return (
        f"{holdings.total} rows ({holdings.messages} messages, {holdings.replies} replies, {holdings.events} events, "
        f"{holdings.dead_letters} dead letters, {holdings.others} others)"
    )
