"""How long to wait before the next attempt."""

from datetime import timedelta

FIRST_DELAY = timedelta(seconds=1)
MAX_DELAY = timedelta(minutes=5)
JITTER = 0.2


def backoff(attempt: int, jitter: float) -> timedelta:
    """Double each time up to a ceiling, spread by ±20 % inside it.

    `chance` is in [0, 1) and comes from the caller, so this stays pure.
    """
    doubled = FIRST_DELAY * (1 << min(max(attempt, 1) - 1, 16))
    return min(doubled * (1 - JITTER + 2 * JITTER * jitter), MAX_DELAY)
