"""Long work on the event loop, in slices: other tasks run in between."""

import asyncio
from time import perf_counter

SLICE_SECONDS = 0.01


class LoopPacer:
    """Tells long-running work when to let other tasks run."""

    def __init__(self, slice_seconds: float = SLICE_SECONDS) -> None:
        self._slice_seconds = slice_seconds
        self._slice_end = perf_counter() + slice_seconds

    @property
    def is_due(self) -> bool:
        """Whether the slice is over: call `pause` now."""
        return perf_counter() >= self._slice_end

    async def pause(self) -> None:
        await asyncio.sleep(0)
        self._slice_end = perf_counter() + self._slice_seconds
