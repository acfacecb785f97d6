"""How long to wait before the next attempt."""

from datetime import timedelta

FIRST = timedelta(seconds=1)
LONGEST = timedelta(minutes=5)
SPREAD = 0.2


def backoff(attempt: int, chance: float) -> timedelta:
    """Double each time up to a ceiling, spread by ±20 % inside it.

    `chance` is in [0, 1) and comes from the caller, so this stays pure.
    """
    doubled = FIRST * (1 << min(max(attempt, 1) - 1, 16))
    return min(doubled * (1 - SPREAD + 2 * SPREAD * chance), LONGEST)
