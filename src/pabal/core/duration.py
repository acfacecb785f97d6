"""Durations as settings and commands write them: `90s`, `15m`, `2h`, `7d`."""

import re
from datetime import timedelta
from typing import Any

DURATION_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def parse_duration(value: Any) -> Any:
    """Parse `90`, `90s`, `15m`, `2h` or `7d`. A value that is not text is returned unchanged."""
    if isinstance(value, str) and (parts := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?\s*", value)):
        try:
            return timedelta(**{DURATION_UNITS[parts[2] or "s"]: float(parts[1])})
        except OverflowError:
            raise ValueError("is too long a duration") from None
    if isinstance(value, str):
        raise ValueError("must be a duration such as 30s, 15m, 2h or 7d")
    return value


def format_duration(duration: timedelta) -> str:
    """Write a duration so that `parse_duration` reads it, in the largest unit that divides it."""
    milliseconds = duration // timedelta(milliseconds=1)
    for unit in ("d", "h", "m", "s"):
        size = timedelta(**{DURATION_UNITS[unit]: 1}) // timedelta(milliseconds=1)
        if milliseconds and milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms"
