"""Everything of one person: taken along as one document, or erased once somebody has said yes to how much it is."""

import os
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec
from cyclopts import Parameter

from pabal.cli import screen
from pabal.cli.dead import ask_confirmation
from pabal.cli.errand import with_transaction
from pabal.core.errors import Conflict, Invalid
from pabal.db.tx import Tx

ExportFileOption = Annotated[
    Path | None, Parameter(help="A new file that only you can read. Default: standard output.")
]
YesOption = Annotated[bool, Parameter(negative="", help="Do not ask.")]
TransactionAction = Callable[[Tx], Awaitable[Any]]


def write_export(document: dict[str, Any], summary: str, path: Path | None) -> None:
    """Print a document, or write it down and say what it holds."""
    if path is None:
        screen.print_json(document)
        return
    with create_private_file(path) as file:
        file.write(msgspec.json.format(msgspec.json.encode(document)) + b"\n")
    screen.print_text(f"{summary} written to {path}")


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
        screen.print_json(asdict(gone) | {"rows": gone.rows})
    else:
        screen.print_text(f"{describe(gone)} erased")


def create_private_file(path: Path) -> BinaryIO:
    """A file nobody else can read, where none was before."""
    try:
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
    except OSError as error:
        raise Invalid.of_field("to", f"{path} cannot be made: {error.strerror}") from None
