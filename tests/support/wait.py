"""Waiting in tests: for a condition, never for a time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from support.clusters import Connection

POLL_INTERVAL = 0.01
COUNT_LOCK_WAITS = (
    "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
)
"""How many sessions of this database wait for a lock."""


async def wait_until(is_true: Callable[[], bool | Awaitable[bool]], within: float = 15.0) -> None:
    """Poll the condition until it is true; raise TimeoutError after `within` seconds."""
    async with asyncio.timeout(within):
        while True:
            result = is_true()
            if result if isinstance(result, bool) else await result:
                return
            await asyncio.sleep(POLL_INTERVAL)


async def wait_for_lock_of(db: Connection, task: "asyncio.Task[Any]") -> None:
    """Wait until the task waits for a lock."""

    async def is_waiting() -> bool:
        return task.done() or await db.fetchval(COUNT_LOCK_WAITS) > 0

    await wait_until(is_waiting)
    assert not task.done(), f"the task did not wait: {task.result()}"
