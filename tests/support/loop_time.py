"""Measures how long the event loop is blocked, in CPU time of its thread: other processes do not matter."""

import asyncio
import gc
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class LoopTime:
    """The longest time between two turns of a task that always wants to run."""

    longest: float = 0.0


@asynccontextmanager
async def measure_loop_time() -> AsyncGenerator[LoopTime]:
    """Measure during the block.

    Without the garbage collector: a full collection depends on all objects of the test process, not on the work.
    """
    measured = LoopTime()
    gc.collect()
    gc.disable()

    async def tick() -> None:
        while True:
            before = time.thread_time()
            await asyncio.sleep(0)
            measured.longest = max(measured.longest, time.thread_time() - before)

    ticker = asyncio.create_task(tick())
    await asyncio.sleep(0)
    try:
        yield measured
    finally:
        ticker.cancel()
        gc.enable()
