"""What the commands print: tables for people, one JSON document for programs, complaints on standard error."""

import sys
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import Any, TypeVar

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


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Names and values, one under the other; what there is nothing to say of is left out."""
    told = [(name, one_line(str(value))) for name, value in fields if value is not None and value != ""]
    room = max((len(name) for name, _ in told), default=0)
    for name, value in told:
        print_text(f"{name:<{room}}  {value}")


def print_block(name: str, text: str) -> None:
    """Something of several lines."""
    print_text(name, "bold")
    for line in text.splitlines():
        print_text(f"  {replace_unprintable(line)}")


def local_time(at: datetime | None, timespec: str = "seconds") -> str:
    """A moment in this machine's time, with how far that is from UTC."""
    return at.astimezone().isoformat(" ", timespec) if at else ""


def display_value(value: Any) -> Any:
    """A fact as it is told: a moment in local time, everything else as it is."""
    return local_time(value) if isinstance(value, datetime) else value


def pretty_json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def print_json_line(value: Any) -> None:
    """One document on one line, for those that follow."""
    sys.stdout.buffer.write(msgspec.json.encode(value, enc_hook=str) + b"\n")
    sys.stdout.flush()


RowT = TypeVar("RowT")
RowCells = Callable[[Any], Sequence[object]]
"""What a table shows of one row."""


def print_page(
    rows: Sequence[Any], next_cursor: str | None, columns: Sequence[str], cells: RowCells, *, empty: str, json: bool
) -> None:
    """Print a page, and where the next one begins."""
    if json:
        print_json({"items": [asdict(each) for each in rows], "cursor": next_cursor})
        return
    print_table(columns, [cells(each) for each in rows], empty=empty)
    if next_cursor:
        print_text(f"older: --cursor {next_cursor}")


def print_rows(rows: Sequence[Any], columns: Sequence[str], cells: RowCells, *, empty: str, json: bool) -> None:
    """Print all there are."""
    if json:
        print_json([asdict(each) for each in rows])
    else:
        print_table(columns, [cells(each) for each in rows], empty=empty)


def creation_cursor(row: Any) -> Any:
    """The place of a row among those that are listed as they were made."""
    return row.created_at, row.id


async def read_all_pages(
    read_page: Callable[[Any], Awaitable[list[RowT]]], row_cursor: Callable[[RowT], Any] = creation_cursor
) -> list[RowT]:
    """Read page after page; `read` is given the place where the page before ended."""
    rows: list[RowT] = []
    while more := await read_page(row_cursor(rows[-1]) if rows else None):
        rows += more
    return rows
