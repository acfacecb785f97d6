"""Errands: what is done after the answer was given, and finished before the hub goes."""

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any


class Errands:
    """Keeps hold of tasks nobody waits for; a task nobody holds may vanish in the middle of its work."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def send(self, errand: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(errand)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def finish(self, within: timedelta | None = None) -> None:
        """Wait for them all, or give up those that take longer."""
        running = {*self._running}
        if running:
            await asyncio.wait(running, timeout=within.total_seconds() if within else None)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
