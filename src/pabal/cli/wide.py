"""What people read of one thing: its facts one under the other, local times, its longer texts."""

import sys
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec

from pabal.cli import screen
from pabal.cli.screen import one_line, replace_unprintable


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Names and values, one under the other; what there is nothing to say of is left out."""
    told = [(name, one_line(str(value))) for name, value in fields if value is not None and value != ""]
    room = max((len(name) for name, _ in told), default=0)
    for name, value in told:
        screen.print_text(f"{name:<{room}}  {value}")


def print_block(name: str, text: str) -> None:
    """Something of several lines."""
    screen.print_text(name, "bold")
    for line in text.splitlines():
        screen.print_text(f"  {replace_unprintable(line)}")


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
