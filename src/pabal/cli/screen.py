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

MAX_WIDTH = 10_000
"""Wider than any row: a terminal wraps what does not fit, and copying an id still copies all of it."""

stdout_console = Console(highlight=False, soft_wrap=True)
table_console = Console(highlight=False, soft_wrap=True, width=MAX_WIDTH)
stderr_console = Console(stderr=True, highlight=False, soft_wrap=True)


def print_text(text: str, style: str = "") -> None:
    stdout_console.print(Text(text, style=style))


def print_error(text: str) -> None:
    stderr_console.print(Text.assemble(("pabal: ", "bold red"), text))


def print_json(value: Any) -> None:
    """Print exactly one JSON document."""
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(value, enc_hook=str)) + b"\n")
    sys.stdout.flush()


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, empty: str = "") -> None:
    """Print rows under their headings, or one sentence instead when there are none."""
    if empty and not rows:
        print_text(empty)
        return
    drawn = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        drawn.add_column(Text(column), no_wrap=True)
    for row in rows:
        drawn.add_row(*(Text(one_line(str(cell))) for cell in row))
    table_console.print(drawn)


@contextmanager
def progress_bar(label: str, total: int) -> Generator[Callable[[int], None]]:
    """A bar on standard error while something long goes on; call what it yields with how much is done since."""
    with Progress(console=stderr_console, transient=True, disable=not stderr_console.is_terminal) as progress:
        task = progress.add_task(label, total=total)
        yield lambda done: progress.advance(task, done)


def one_line(text: str, max_chars: int = MAX_WIDTH) -> str:
    """Whatever somebody wrote, on one line and with nothing that moves the cursor."""
    flat = replace_unprintable(" ".join(text.split()))
    return flat if len(flat) <= max_chars else flat[: max_chars - 1] + "…"


def replace_unprintable(text: str) -> str:
    """Whatever a stranger called himself, it must not move the cursor of whoever reads it."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)
