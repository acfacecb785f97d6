"""Tables of results as Markdown: for the terminal, and for the document between two of its marks."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

DOCUMENT = Path(__file__).parent.parent / "docs" / "benchmarks.md"


@dataclass(frozen=True, slots=True)
class Table:
    """A title, which heads the first column, the other columns, and the rows."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


def print_table(table: Table) -> None:
    print(f"\n{markdown(table)}", flush=True)


def write_tables(tables: Sequence[Table], mark: str, above: str = "", document: Path = DOCUMENT) -> None:
    """Replace what stands between the marks of the document by the tables; `above` stands over them."""
    begin, end = f"<!-- {mark} -->", f"<!-- /{mark} -->"
    text = document.read_text(encoding="utf-8")
    between = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if not between.search(text):
        raise SystemExit(f"{document} has no {begin} … {end} to write between")
    body = "\n\n".join([*filter(None, [above]), *map(markdown, tables)])
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
