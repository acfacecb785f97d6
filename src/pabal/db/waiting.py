"""Wait for an event with a time limit, and for tasks that are told to stop."""

import asyncio
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

CANCEL_AGAIN_AFTER = 0.5
"""Seconds. Libraries swallow a cancellation now and then."""


async def wait_with_timeout(event: asyncio.Event, timeout: timedelta) -> bool:
    try:
        async with asyncio.timeout(timeout.total_seconds()):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def stop_tasks(tasks: "Iterable[asyncio.Task[Any]]") -> None:
    """Cancel tasks until all of them have ended."""
    pending = {*tasks}
    while pending := {task for task in pending if not task.done()}:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=CANCEL_AGAIN_AFTER)
