"""Tables of results: for the terminal, and for the document between two of its marks."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.ground import show


@dataclass(frozen=True, slots=True)
class Table:
    """A title, which heads the first column, the other columns, and the rows."""

    title: str
    columns: list[str]
    rows: Sequence[Sequence[object]]


def print_table(table: Table) -> None:
    show(table.title, ["", *table.columns], [[*row] for row in table.rows])


def write_tables(tables: Sequence[Table], document: Path, mark: str, above: str) -> None:
    """Put the tables, and what is to stand above them, where the document has the mark; what is around it stays."""
    begin, end = f"<!-- {mark} -->", f"<!-- /{mark} -->"
    text = document.read_text(encoding="utf-8")
    between = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if not between.search(text):
        raise SystemExit(f"{document} has no {begin} … {end} to write between")
    body = "\n\n".join([above, *map(markdown, tables)])
    document.write_text(between.sub(lambda _: f"{begin}\n\n{body}\n\n{end}", text), encoding="utf-8")


def markdown(table: Table) -> str:
    lines = [
        [table.title, *table.columns],
        ["---", *("---:" if len(table.columns) > 1 else "---" for _ in table.columns)],
        *([cell(value) for value in row] for row in table.rows),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
