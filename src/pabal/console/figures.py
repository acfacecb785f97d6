"""Numbers as a person reads them."""

from datetime import timedelta

MINUTE, HOUR, DAY = 60, 3600, 86400


def count(number: int) -> str:
    return f"{number:,}"


def age(span: timedelta) -> str:
    """Write `3.2 s`, `4 min`, `2 h 5 min`, `3 d 4 h`: two places, no more."""
    seconds = span.total_seconds()
    if seconds < MINUTE:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    if whole < HOUR:
        return f"{whole // MINUTE} min"
    if whole < DAY:
        return f"{whole // HOUR} h {whole % HOUR // MINUTE} min"
    return f"{whole // DAY} d {whole % DAY // HOUR} h"
