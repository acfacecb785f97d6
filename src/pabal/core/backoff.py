"""Delays that grow, and delays that are spread so that many processes do not act at the same moment."""

import random
from datetime import timedelta
from typing import TypeVar

FIRST_DELAY = timedelta(seconds=1)
MAX_DELAY = timedelta(minutes=5)
JITTER = 0.2

DurationT = TypeVar("DurationT", float, timedelta)


def backoff(attempt: int, jitter: float) -> timedelta:
    """Exponential backoff with ±20 % jitter, capped at MAX_DELAY. `jitter` is in [0, 1)."""
    delay = FIRST_DELAY * (1 << min(max(attempt, 1) - 1, 16))
    return min(delay * (1 - JITTER + 2 * JITTER * jitter), MAX_DELAY)


def spread(duration: DurationT, low: float = 1 - JITTER, high: float = 1 + JITTER) -> DurationT:
    """Return `duration` times a random factor in [low, high]: by default ±20 %."""
    return duration * random.uniform(low, high)  # noqa: S311 jitter, not a secret
