"""Everything of one person: taken along as one document, or erased once somebody has said yes to how much it is."""

import os
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec
from cyclopts import Parameter

from pabal.cli import screen
from pabal.cli.dead import agreed
from pabal.cli.errand import in_transaction
from pabal.core.errors import Conflict, Invalid
from pabal.db.tx import Tx

To = Annotated[Path | None, Parameter(help="A new file that only you can read. Default: standard output.")]
Yes = Annotated[bool, Parameter(negative="", help="Do not ask.")]
Verb = Callable[[Tx], Awaitable[Any]]


def hand_over(document: dict[str, Any], holds: str, to: Path | None) -> None:
    """Print a document, or write it down and say what it holds."""
    if to is None:
        screen.as_json(document)
        return
    with private(to) as file:
        file.write(msgspec.json.format(msgspec.json.encode(document)) + b"\n")
    screen.say(f"{holds} written to {to}")


def wipe(
    count: Verb,
    erase: Verb,
    in_words: Callable[[Any], str],
    *,
    yes: bool,
    json: bool,
    data_dir: Path | None,
    database_url: str | None,
) -> None:
    """Say how much there is and ask, unless that was answered; then erase it, and say how much that was."""
    if not yes:
        there = in_transaction(count, data_dir, database_url)
        if not agreed(f"Erase {in_words(there)}?"):
            raise Conflict("nothing was erased")
    gone = in_transaction(erase, data_dir, database_url)
    if json:
        screen.as_json(asdict(gone) | {"rows": gone.rows})
    else:
        screen.say(f"{in_words(gone)} erased")


def private(path: Path) -> BinaryIO:
    """A file nobody else can read, where none was before."""
    try:
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
    except OSError as error:
        raise Invalid.one("to", f"{path} cannot be made: {error.strerror}") from None
