"""A circuit breaker: who fails again and again is left in peace for a while, then asked once.

Its state is two columns of the subscription, so that all processes see the same one. What follows from an answer is
decided here; the clock comes in as an argument.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto

FAILURE_THRESHOLD = 5
FIRST_OPEN_DURATION = timedelta(seconds=10)
MAX_OPEN_DURATION = timedelta(minutes=5)


class BreakerState(Enum):
    """What a breaker lets through."""

    CLOSED = auto()
    """Everything."""
    OPEN = auto()
    """Nothing."""
    HALF_OPEN = auto()
    """One, to see."""


@dataclass(frozen=True, slots=True)
class CircuitBreaker:
    """Failures since the last success, and until when nothing is sent."""

    failures: int = 0
    open_until: datetime | None = None

    def state(self, now: datetime) -> BreakerState:
        if self.open_until is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if self.open_until > now else BreakerState.HALF_OPEN

    def after_failure(self, now: datetime, *, is_probe: bool) -> "CircuitBreaker":
        """Count a failure. While it is open only the probe's counts: the others were sent before it opened."""
        if self.open_until is not None and not is_probe:
            return self
        failures = self.failures + 1
        return CircuitBreaker(failures, now + open_duration(failures) if failures >= FAILURE_THRESHOLD else None)


CLOSED_BREAKER = CircuitBreaker()
"""What a success makes of any."""


def open_duration(failures: int) -> timedelta:
    """How long nothing is sent after so many failures in a row: doubled each time, up to a ceiling."""
    return min(FIRST_OPEN_DURATION * (1 << min(max(failures - FAILURE_THRESHOLD, 0), 16)), MAX_OPEN_DURATION)
