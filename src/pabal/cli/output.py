"""What commands print: tables for people, one JSON document for programs, errors on standard error."""

import sys
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import Any, TypeVar

import msgspec
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

MAX_LINE_CHARS = 10_000

stdout_console = Console(highlight=False, soft_wrap=True)
stderr_console = Console(stderr=True, highlight=False, soft_wrap=True)

RowT = TypeVar("RowT")
RowCells = Callable[[Any], Sequence[object]]
"""Returns the table cells of one row."""


def print_text(text: str, style: str = "") -> None:
    stdout_console.print(Text(text, style=style))


def print_error(text: str) -> None:
    stderr_console.print(Text.assemble(("pabal: ", "bold red"), text))


def print_hint(text: str) -> None:
    """Print advice on standard error, so that standard output stays clean for programs."""
    stderr_console.print(Text(text))


def print_json(value: Any) -> None:
    """Print exactly one JSON document."""
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(value, enc_hook=str)) + b"\n")
    sys.stdout.flush()


def print_json_line(value: Any) -> None:
    """Print one JSON document on one line, for streams."""
    sys.stdout.buffer.write(msgspec.json.encode(value, enc_hook=str) + b"\n")
    sys.stdout.flush()


def print_json_items(items: Iterable[Any], cursor: str | None = None) -> None:
    """Print a list as JSON. Every list has this shape."""
    print_json({"items": [*items], "cursor": cursor})


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, empty: str = "") -> None:
    """Print rows under their headings, or `empty` if there are none. `rich.table` would cost 20 ms to import."""
    if empty and not rows:
        print_text(empty)
        return
    cells = [[one_line(str(cell)) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(columns, *cells, strict=True)]
    for number, row in enumerate([[*columns], *cells]):
        line = "  ".join(set_cell_size(cell, width) for cell, width in zip(row, widths, strict=True))
        print_text(line.rstrip(), "" if number else "bold")


def print_page(
    rows: Sequence[Any], next_cursor: str | None, columns: Sequence[str], cells: RowCells, *, empty: str, json: bool
) -> None:
    """Print one page of a list and how to get the next one."""
    if json:
        print_json_items(map(asdict, rows), next_cursor)
        return
    print_table(columns, [cells(row) for row in rows], empty=empty)
    if next_cursor:
        print_text(f"older: --cursor {next_cursor}")


def print_rows(rows: Sequence[Any], columns: Sequence[str], cells: RowCells, *, empty: str, json: bool) -> None:
    """Print a whole list."""
    print_page(rows, None, columns, cells, empty=empty, json=json)


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Print names and values in two columns, without empty values."""
    lines = [(name, one_line(str(value))) for name, value in fields if value is not None and value != ""]
    width = max((len(name) for name, _ in lines), default=0)
    for name, value in lines:
        print_text(f"{name:<{width}}  {value}")


def print_block(name: str, text: str) -> None:
    """Print a text of several lines under its name."""
    print_text(name, "bold")
    for line in text.splitlines():
        print_text(f"  {replace_unprintable(line)}")


@contextmanager
def progress_bar(label: str, total: int) -> Generator[Callable[[int], None]]:
    """Show a progress bar on standard error. Call the yielded function with the number of steps since the last call."""
    from rich.progress import Progress

    with Progress(console=stderr_console, transient=True, disable=not stderr_console.is_terminal) as progress:
        task = progress.add_task(label, total=total)
        yield lambda steps: progress.advance(task, steps)


def ask_confirmation(question: str) -> bool:
    """Ask on standard error and read the answer from standard input. No answer means no."""
    stderr_console.print(Text(f"{question} [y/N] "), end="")
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def one_line(text: str, max_chars: int = MAX_LINE_CHARS) -> str:
    """Put untrusted text on one line, without control characters."""
    line = replace_unprintable(" ".join(text.split()))
    return line if len(line) <= max_chars else line[: max_chars - 1] + "…"


def replace_unprintable(text: str) -> str:
    """Replace control characters: untrusted text must not move the reader's cursor."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def local_time(at: datetime | None, timespec: str = "seconds") -> str:
    """Format a timestamp in local time, with its UTC offset."""
    return at.astimezone().isoformat(" ", timespec) if at else ""


def display_value(value: Any) -> Any:
    """Format timestamps in local time; return other values unchanged."""
    return local_time(value) if isinstance(value, datetime) else value


def pretty_json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def state_since(state: str, since: datetime | None) -> str:
    return f"{state} since {local_time(since)}" if since else "active"


def creation_cursor(row: Any) -> Any:
    return row.created_at, row.id


async def read_all_pages(
    read_page: Callable[[Any], Awaitable[list[RowT]]], row_cursor: Callable[[RowT], Any] = creation_cursor
) -> list[RowT]:
    """Read page after page. `read_page` takes the cursor of the last row so far, or None for the first page."""
    rows: list[RowT] = []
    while page := await read_page(row_cursor(rows[-1]) if rows else None):
        rows += page
    return rows
