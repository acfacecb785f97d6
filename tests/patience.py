"""Waiting in tests: for something true, never for a time."""

import asyncio
from collections.abc import Awaitable, Callable

PAUSE = 0.01


async def until(is_true: Callable[[], bool | Awaitable[bool]], within: float = 15.0) -> None:
    """Look again and again until it is true; give up with an error when the time is over."""
    async with asyncio.timeout(within):
        while True:
            found = is_true()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(PAUSE)
