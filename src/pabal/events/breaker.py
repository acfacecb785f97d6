"""A circuit breaker: who fails again and again is left in peace for a while, then asked once.

Its state is two columns of the subscription, so that all processes see the same one. What follows from an answer is
decided here; the clock comes in as an argument.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto

TRIES = 5
FIRST = timedelta(seconds=10)
LONGEST = timedelta(minutes=5)


class Standing(Enum):
    """What a breaker lets through."""

    CLOSED = auto()
    """Everything."""
    OPEN = auto()
    """Nothing."""
    HALF_OPEN = auto()
    """One, to see."""


@dataclass(frozen=True, slots=True)
class Breaker:
    """Failures since the last success, and until when nothing is sent."""

    failures: int = 0
    open_until: datetime | None = None

    def standing(self, now: datetime) -> Standing:
        if self.open_until is None:
            return Standing.CLOSED
        return Standing.OPEN if self.open_until > now else Standing.HALF_OPEN

    def failed(self, now: datetime, *, probing: bool) -> "Breaker":
        """Count a failure. While it is open only the probe's counts: the others were sent before it opened."""
        if self.open_until is not None and not probing:
            return self
        failures = self.failures + 1
        return Breaker(failures, now + rest(failures) if failures >= TRIES else None)


CLOSED = Breaker()
"""What a success makes of any."""


def rest(failures: int) -> timedelta:
    """How long nothing is sent after so many failures in a row: doubled each time, up to a ceiling."""
    return min(FIRST * (1 << min(max(failures - TRIES, 0), 16)), LONGEST)
