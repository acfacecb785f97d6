"""The log of requests: one line each, but of many fast and successful ones in a second only the first."""

import asyncio
from http import HTTPStatus

from pabal.core.log import get_logger

log = get_logger()

WINDOW_SECONDS = 1.0
SLOW_SECONDS = 1.0
"""Requests that take as long are always logged."""


class AccessLogSampler:
    """Decides which requests are logged: errors and slow ones always, others up to a number per second.

    The others are counted, and one line says how many they were.
    """

    def __init__(self, max_per_second: int) -> None:
        """`max_per_second` 0 is no limit."""
        self._limit = max_per_second
        self._logged = self._skipped = 0
        self._window_end: asyncio.TimerHandle | None = None

    def is_logged(self, status: int, seconds: float) -> bool:
        """Whether to log a request; counts it. Status 0: there was no response."""
        if not self._limit or not 0 < status < HTTPStatus.BAD_REQUEST or seconds >= SLOW_SECONDS:
            return True
        if self._window_end is None:
            self._window_end = asyncio.get_running_loop().call_later(WINDOW_SECONDS, self.end_window)
        if self._logged < self._limit:
            self._logged += 1
            return True
        self._skipped += 1
        return False

    def end_window(self) -> None:
        """Log how many requests of this second were not logged, and begin anew with the next request."""
        skipped, self._logged, self._skipped = self._skipped, 0, 0
        if self._window_end is not None:
            self._window_end.cancel()
            self._window_end = None
        if skipped:
            log.info("requests not logged", count=skipped, reason="successful, above PABAL_LOG_REQUESTS_PER_SECOND")
