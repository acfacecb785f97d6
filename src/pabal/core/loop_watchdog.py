"""Measure how late the event loop runs, and log what blocks it.

While a function blocks the loop, every request, lease extension and heartbeat of the process waits for it.
"""

import asyncio
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from types import FrameType

from pabal.core.log import get_logger

log = get_logger()

BEAT_INTERVAL = 0.05
"""Seconds between two measurements."""
MAX_LAG = 0.25
"""Seconds after which the loop counts as blocked."""
REPORT_AFTER = 5.0
"""Seconds after which a block is reported before it ends."""
LOG_INTERVAL = 60.0
"""Seconds between two log lines."""
MAX_FRAMES = 25
MAX_STACK_LENGTH = 2000
WAITING_MODULES = frozenset({"asyncio.runners", "asyncio.base_events", "selectors"})
"""Where an event loop waits for work. If it is here, the operating system did not run the process."""


class LoopWatchdog:
    """Beats in the event loop, and watches from a thread that the beat goes on.

    The thread wakes up only when a beat is overdue, so a healthy loop costs three wake-ups a second.
    """

    def __init__(self, observe_lag: Callable[[float], None]) -> None:
        self._observe_lag = observe_lag
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._due = time.monotonic() + BEAT_INTERVAL
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="loop watchdog", daemon=True)
        self._last_report = -LOG_INTERVAL
        self.unreported = 0

    def start(self) -> None:
        self._timer = self._loop.call_later(BEAT_INTERVAL, self._beat)
        self._thread.start()

    def stop(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._stopped.set()
        self._thread.join()

    def _beat(self) -> None:
        now = time.monotonic()
        self._observe_lag(max(now - self._due, 0.0))
        self._due = now + BEAT_INTERVAL
        self._timer = self._loop.call_later(BEAT_INTERVAL, self._beat)

    def _watch(self) -> None:
        while not self._stopped.wait(max(self._due + MAX_LAG - time.monotonic(), 0.0)):
            due = self._due
            if time.monotonic() < due + MAX_LAG:
                continue
            stack = sample_stack(self._loop_thread)
            while self._due == due and time.monotonic() < due + REPORT_AFTER and not self._stopped.wait(BEAT_INTERVAL):
                pass
            self._report(stack, time.monotonic() - due)
            while self._due == due and not self._stopped.wait(MAX_LAG):
                pass

    def _report(self, stack: str, seconds: float) -> None:
        if not stack:
            return
        if time.monotonic() - self._last_report < LOG_INTERVAL:
            self.unreported += 1
            return
        log.warning("event loop blocked", seconds=round(seconds, 2), stack=stack, earlier=self.unreported)
        self._last_report, self.unreported = time.monotonic(), 0


def sample_stack(thread: int) -> str:
    """What a thread is running now."""
    return format_loop_stack(sys._current_frames().get(thread))  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]


def format_loop_stack(frame: FrameType | None) -> str:
    """The functions on the stack, innermost first; without source lines and variables, which may hold secrets.

    Empty if the event loop only waits.
    """
    names: list[str] = []
    while frame is not None and len(names) < MAX_FRAMES:
        names.append(f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_name}:{frame.f_lineno}")
        if len(names) == 1 and frame.f_globals.get("__name__") in WAITING_MODULES:
            return ""
        frame = frame.f_back
    return " < ".join(names)[:MAX_STACK_LENGTH]


@asynccontextmanager
async def watched_event_loop(observe_lag: Callable[[float], None]) -> AsyncGenerator[LoopWatchdog]:
    """Watch the running event loop for the duration of the block."""
    watchdog = LoopWatchdog(observe_lag)
    watchdog.start()
    try:
        yield watchdog
    finally:
        watchdog.stop()
