"""Everything of one person: taken along as one document, or erased once somebody has said yes to how much it is."""

import os
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import cyclopts
import msgspec
from cyclopts import Parameter

from pabal.cli.context import cli_actor, with_transaction
from pabal.cli.dead_letter import ask_confirmation
from pabal.cli.options import DatabaseUrl, DataDir, Json
from pabal.cli.output import print_json, print_text
from pabal.core.actor import Actor
from pabal.core.errors import Conflict, Invalid
from pabal.db.tx import Tx
from pabal.notifications.privacy import PersonDataCounts, count_person_data, erase_person, export_person
from pabal.relay.privacy import (
    ConversationDataCounts,
    count_conversation_data,
    erase_conversation,
    export_conversation,
)

ExportFileOption = Annotated[
    Path | None, Parameter(help="A new file that only you can read. Default: standard output.")
]
YesOption = Annotated[bool, Parameter(negative="", help="Do not ask.")]
TransactionAction = Callable[[Tx], Awaitable[Any]]


def write_export(document: dict[str, Any], summary: str, path: Path | None) -> None:
    """Print a document, or write it down and say what it holds."""
    if path is None:
        print_json(document)
        return
    with create_private_file(path) as file:
        file.write(msgspec.json.format(msgspec.json.encode(document)) + b"\n")
    print_text(f"{summary} written to {path}")


def confirm_and_erase(
    count: TransactionAction,
    erase: TransactionAction,
    describe: Callable[[Any], str],
    *,
    yes: bool,
    json: bool,
    data_dir: Path | None,
    database_url: str | None,
) -> None:
    """Say how much there is and ask, unless that was answered; then erase it, and say how much that was."""
    if not yes:
        there = with_transaction(count, data_dir, database_url)
        if not ask_confirmation(f"Erase {describe(there)}?"):
            raise Conflict("nothing was erased")
    gone = with_transaction(erase, data_dir, database_url)
    if json:
        print_json(asdict(gone) | {"rows": gone.total})
    else:
        print_text(f"{describe(gone)} erased")


def create_private_file(path: Path) -> BinaryIO:
    """A file nobody else can read, where none was before."""
    try:
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
    except OSError as error:
        raise Invalid.of_field("to", f"{path} cannot be made: {error.strerror}") from None


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
    document = with_transaction(lambda tx: export_conversation(tx, key, Actor(cli_actor())), data_dir, database_url)
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
        lambda tx: erase_conversation(tx, key, Actor(cli_actor())),
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
    document = with_transaction(lambda tx: export_person(tx, person, Actor(cli_actor())), data_dir, database_url)
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
        lambda tx: erase_person(tx, person, Actor(cli_actor())),
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
