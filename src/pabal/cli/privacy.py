"""Export and erase the data of a conversation or a person."""

import os
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec
from cyclopts import Parameter

from pabal.cli.context import run_transaction
from pabal.cli.options import Connection
from pabal.cli.output import ask_confirmation, print_json, print_text
from pabal.core.errors import Conflict, Invalid
from pabal.db.tx import Tx

ExportFile = Annotated[Path | None, Parameter(help="New file, readable only by you. Default: standard output.")]
DataAction = Callable[[Tx], Awaitable[Any]]


def write_export(document: dict[str, Any], summary: str, path: Path | None) -> None:
    """Print a document, or write it to a new file and print what it contains."""
    if path is None:
        print_json(document)
        return
    with create_private_file(path) as file:
        file.write(msgspec.json.format(msgspec.json.encode(document)) + b"\n")
    print_text(f"{summary} written to {path}")


def confirm_and_erase(
    connection: Connection,
    count: DataAction,
    erase: DataAction,
    describe: Callable[[Any], str],
    *,
    yes: bool,
    json: bool,
) -> None:
    """Show how much data there is, ask unless `yes`, erase it and print what was erased."""
    if not yes:
        counts = run_transaction(connection, count)
        if not ask_confirmation(f"Erase {describe(counts)}?"):
            raise Conflict("Nothing erased")
    erased = run_transaction(connection, erase)
    if json:
        print_json(asdict(erased) | {"rows": erased.total})
    else:
        print_text(f"{describe(erased)} erased")


def create_private_file(path: Path) -> BinaryIO:
    """Create a file that only its owner can read. An existing file is not overwritten."""
    try:
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
    except OSError as error:
        raise Invalid.of_field("to", f"{path} cannot be created: {error.strerror}") from None
