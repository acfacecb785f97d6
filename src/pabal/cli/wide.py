"""What people read of rows: tables in which no id is broken, local times, texts on one line."""

import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pabal.cli import screen
from pabal.cli.screen import printable

ROOM = 10_000
"""Wider than any row: a terminal wraps what does not fit, and copying an id still copies all of it."""

paper = Console(highlight=False, soft_wrap=True, width=ROOM)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    drawn = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        drawn.add_column(column, no_wrap=True)
    for row in rows:
        drawn.add_row(*(Text(one_line(str(cell))) for cell in row))
    paper.print(drawn)


def facts(pairs: Iterable[tuple[str, object]]) -> None:
    """Names and values, one under the other; what there is nothing to say of is left out."""
    told = [(name, one_line(str(value))) for name, value in pairs if value is not None and value != ""]
    room = max((len(name) for name, _ in told), default=0)
    for name, value in told:
        screen.say(f"{name:<{room}}  {value}")


def block(name: str, text: str) -> None:
    """Something of several lines."""
    screen.say(name, "bold")
    for line in text.splitlines():
        screen.say(f"  {printable(line)}")


def local(at: datetime | None, timespec: str = "seconds") -> str:
    """A moment in this machine's time, with how far that is from UTC."""
    return at.astimezone().isoformat(" ", timespec) if at else ""


def one_line(text: str, most: int = ROOM) -> str:
    """Whatever somebody wrote, on one line and with nothing that moves the cursor."""
    flat = printable(" ".join(text.split()))
    return flat if len(flat) <= most else flat[: most - 1] + "…"


def pretty(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def json_line(value: Any) -> None:
    """One document on one line, for those that follow."""
    sys.stdout.buffer.write(msgspec.json.encode(value, enc_hook=str) + b"\n")
    sys.stdout.flush()
