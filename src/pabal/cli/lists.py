"""Lists: one page of a long one and how to ask for the next, or all of a short one."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from pabal.cli import screen

RowT = TypeVar("RowT")
RowCells = Callable[[Any], Sequence[object]]
"""What a table shows of one row."""


def print_page(
    rows: Sequence[Any], next_cursor: str | None, columns: Sequence[str], cells: RowCells, *, empty: str, json: bool
) -> None:
    """Print a page, and where the next one begins."""
    if json:
        screen.print_json({"items": [asdict(each) for each in rows], "cursor": next_cursor})
        return
    screen.print_table(columns, [cells(each) for each in rows], empty=empty)
    if next_cursor:
        screen.print_text(f"older: --cursor {next_cursor}")


def print_rows(rows: Sequence[Any], columns: Sequence[str], cells: RowCells, *, empty: str, json: bool) -> None:
    """Print all there are."""
    if json:
        screen.print_json([asdict(each) for each in rows])
    else:
        screen.print_table(columns, [cells(each) for each in rows], empty=empty)


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
