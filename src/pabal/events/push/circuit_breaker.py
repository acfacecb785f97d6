"""Circuit breaker: after repeated failures, stop sending to a receiver for a while, then probe it with one event.

The state is two columns of the subscription, so all processes share it. This module only decides; the caller passes
the time.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto

FAILURE_THRESHOLD = 5
FIRST_OPEN_DURATION = timedelta(seconds=10)
MAX_OPEN_DURATION = timedelta(minutes=5)


class BreakerState(Enum):
    CLOSED = auto()
    """Send everything."""
    OPEN = auto()
    """Send nothing."""
    HALF_OPEN = auto()
    """Send one event, the probe."""


@dataclass(frozen=True, slots=True)
class CircuitBreaker:
    """The failures since the last success, and the time until which nothing is sent."""

    failures: int = 0
    open_until: datetime | None = None

    def state(self, now: datetime) -> BreakerState:
        if self.open_until is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if self.open_until > now else BreakerState.HALF_OPEN

    def after_failure(self, now: datetime, *, is_probe: bool) -> "CircuitBreaker":
        """Count a failure. While the breaker is open only the probe counts: other pushes were sent before it opened."""
        if self.open_until is not None and not is_probe:
            return self
        failures = self.failures + 1
        return CircuitBreaker(failures, now + open_duration(failures) if failures >= FAILURE_THRESHOLD else None)


CLOSED_BREAKER = CircuitBreaker()
"""The breaker after any success."""


def open_duration(failures: int) -> timedelta:
    """How long to send nothing after this many consecutive failures: doubles each time, up to MAX_OPEN_DURATION."""
    return min(FIRST_OPEN_DURATION * (1 << min(max(failures - FAILURE_THRESHOLD, 0), 16)), MAX_OPEN_DURATION)
