"""Lists: one page of a long one and how to ask for the next, or all of a short one."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from pabal.cli import screen

Row = TypeVar("Row")
Cells = Callable[[Any], Sequence[object]]
"""What a table shows of one row."""


def page(
    found: Sequence[Any], following: str | None, columns: Sequence[str], cells: Cells, *, empty: str, json: bool
) -> None:
    """Print a page, and where the next one begins."""
    if json:
        screen.as_json({"items": [asdict(each) for each in found], "cursor": following})
        return
    screen.table(columns, [cells(each) for each in found], empty=empty)
    if following:
        screen.say(f"older: --cursor {following}")


def whole(found: Sequence[Any], columns: Sequence[str], cells: Cells, *, empty: str, json: bool) -> None:
    """Print all there are."""
    if json:
        screen.as_json([asdict(each) for each in found])
    else:
        screen.table(columns, [cells(each) for each in found], empty=empty)


def made(row: Any) -> Any:
    """The place of a row among those that are listed as they were made."""
    return row.created_at, row.id


async def to_the_end(read: Callable[[Any], Awaitable[list[Row]]], place: Callable[[Row], Any] = made) -> list[Row]:
    """Read page after page; `read` is given the place where the page before ended."""
    rows: list[Row] = []
    while more := await read(place(rows[-1]) if rows else None):
        rows += more
    return rows
