"""What can become of a claimed row. A closed set: `match` over it ends in `assert_never`."""

from dataclasses import dataclass
from datetime import timedelta
from typing import final


@final
@dataclass(frozen=True, slots=True)
class Done:
    """It is delivered."""


@final
@dataclass(frozen=True, slots=True)
class Retry:
    """Not this time. `after` overrides the backoff, as a 429 asks us to."""

    error: str
    delay: timedelta | None = None
    code: str | None = None
    stack: str | None = None


@final
@dataclass(frozen=True, slots=True)
class Dead:
    """Never. It goes where a person will look."""

    error: str
    code: str | None = None
    stack: str | None = None


@final
@dataclass(frozen=True, slots=True)
class Snooze:
    """Not now, and nobody's fault: no attempt is spent."""

    reason: str
    delay: timedelta


Outcome = Done | Retry | Dead | Snooze
DONE = Done()


FIRST_DELAY = timedelta(seconds=1)
MAX_DELAY = timedelta(minutes=5)
JITTER = 0.2


def backoff(attempt: int, jitter: float) -> timedelta:
    """Double each time up to a ceiling, spread by ±20 % inside it.

    `chance` is in [0, 1) and comes from the caller, so this stays pure.
    """
    doubled = FIRST_DELAY * (1 << min(max(attempt, 1) - 1, 16))
    return min(doubled * (1 - JITTER + 2 * JITTER * jitter), MAX_DELAY)
