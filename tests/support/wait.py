"""Waiting in tests: for something true, never for a time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from support.clusters import Connection

PAUSE = 0.01
WAITING = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
"""How many in this database wait for what somebody else holds."""


async def until(is_true: Callable[[], bool | Awaitable[bool]], within: float = 15.0) -> None:
    """Look again and again until it is true; give up with an error when the time is over."""
    async with asyncio.timeout(within):
        while True:
            found = is_true()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(PAUSE)


async def waits_for_it(db: Connection, deed: "asyncio.Task[Any]") -> None:
    """Wait until a deed waits for what somebody else holds."""

    async def waits() -> bool:
        return deed.done() or await db.fetchval(WAITING) > 0

    await until(waits)
    assert not deed.done(), f"it did not wait: {deed.result()}"
