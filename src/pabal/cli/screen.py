"""What the commands print: tables for people, one JSON document for programs, complaints on standard error."""

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

ROOM = 10_000
"""Wider than any row: a terminal wraps what does not fit, and copying an id still copies all of it."""

out = Console(highlight=False, soft_wrap=True)
paper = Console(highlight=False, soft_wrap=True, width=ROOM)
err = Console(stderr=True, highlight=False, soft_wrap=True)


def say(text: str, style: str = "") -> None:
    out.print(Text(text, style=style))


def complain(text: str) -> None:
    err.print(Text.assemble(("pabal: ", "bold red"), text))


def as_json(value: Any) -> None:
    """Print exactly one JSON document."""
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(value, enc_hook=str)) + b"\n")
    sys.stdout.flush()


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, empty: str = "") -> None:
    """Print rows under their headings, or one sentence instead when there are none."""
    if empty and not rows:
        say(empty)
        return
    drawn = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        drawn.add_column(Text(column), no_wrap=True)
    for row in rows:
        drawn.add_row(*(Text(one_line(str(cell))) for cell in row))
    paper.print(drawn)


@contextmanager
def bar(doing: str, total: int) -> Generator[Callable[[int], None]]:
    """A bar on standard error while something long goes on; call what it yields with how much is done since."""
    with Progress(console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task(doing, total=total)
        yield lambda done: progress.advance(task, done)


def one_line(text: str, most: int = ROOM) -> str:
    """Whatever somebody wrote, on one line and with nothing that moves the cursor."""
    flat = printable(" ".join(text.split()))
    return flat if len(flat) <= most else flat[: most - 1] + "…"


def printable(text: str) -> str:
    """Whatever a stranger called himself, it must not move the cursor of whoever reads it."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)
