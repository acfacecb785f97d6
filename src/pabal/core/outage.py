"""The log of an outage: one line when it begins, one a minute while it lasts, one when it ends."""

from collections.abc import Callable
from time import monotonic

from pabal.core.errors import Unavailable
from pabal.core.log import get_logger

log = get_logger()

REPEAT_AFTER = 60.0
"""Seconds between two lines about the same outage."""
CALM_AFTER = 1.0
"""Seconds without a failure after which a success ends the outage: some statements may succeed while others fail."""


class OutageLog:
    """Counts failures of `what`, which is a noun such as `database`."""

    def __init__(self, what: str, clock: Callable[[], float] = monotonic) -> None:
        self._what = what
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
            self._began_at = self._logged_at = now
            log.error("outage began", of=self._what, error=str(error))
        elif now - self._logged_at >= REPEAT_AFTER:
            self._logged_at = now
            facts = {"seconds": round(now - self._began_at), "failures": self._failures, "error": str(error)}
            log.error("outage goes on", of=self._what, **facts)

    def record_success(self) -> None:
        """End the outage, if there is one and failures have ceased."""
        if self._began_at is not None and self._clock() - self._failed_at >= CALM_AFTER:
            self.end()

    def end(self) -> None:
        if self._began_at is None:
            return
        seconds = round(self._clock() - self._began_at, 1)
        self._began_at = None
        log.info("outage ended", of=self._what, seconds=seconds, failures=self._failures)
        self._failures = 0


def log_failure(event: str, error: Exception, **facts: object) -> None:
    """Log a failed step that is tried again. The database itself logs its outages, so they are details here."""
    write = log.debug if isinstance(error, Unavailable) else log.warning
    write(event, error=str(error), **facts)
