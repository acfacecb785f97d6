"""The log of an outage: one line when it begins, one a minute while it lasts, one when it ends."""

from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

from pabal.core.errors import DATABASE_UNAVAILABLE

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

REPEAT_AFTER = 60.0
"""Seconds between two lines about the same outage."""
CALM_AFTER = 1.0
"""Seconds without a failure after which a success ends the outage: some statements may succeed while others fail."""


class OutageLog:
    """Counts failures. `began` and `ended` are the names of the log lines."""

    def __init__(self, began: str, ended: str, clock: Callable[[], float] = monotonic) -> None:
        self._began, self._ended = began, ended
        self._clock = clock
        self._began_at: float | None = None
        self._failed_at = self._logged_at = 0.0
        self._failures = 0

    @property
    def is_open(self) -> bool:
        return self._began_at is not None

    def record_failure(self, error: object) -> None:
        self._failed_at = now = self._clock()
        self._failures += 1
        if self._began_at is None:
            self._began_at = now
        elif now - self._logged_at < REPEAT_AFTER:
            return
        self._logged_at = now
        reason = str(error).removeprefix(DATABASE_UNAVAILABLE)
        facts = {"seconds": round(now - self._began_at), "failures": self._failures} if self._failures > 1 else {}
        load_logger().error(self._began, error=reason, **facts)

    def record_success(self) -> None:
        """End the outage, if there is one and failures have ceased."""
        if self._began_at is not None and self._clock() - self._failed_at >= CALM_AFTER:
            self.end()

    def end(self) -> None:
        if self._began_at is not None:
            seconds = round(self._clock() - self._began_at, 1)
            load_logger().info(self._ended, seconds=seconds, failures=self._failures)
        self._began_at = None
        self._failures = 0


def database_outage_log() -> OutageLog:
    return OutageLog("database unavailable", "database available again")


def load_logger() -> "FilteringBoundLogger":
    from pabal.core.log import get_logger  # commands open a database without it, and it is slow to import

    return get_logger()
