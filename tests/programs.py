"""Somebody's program: its handlers in a worker for as long as a block lasts."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from pabal import client
from pabal.cli.program import handler_of
from pabal.events.handle import Handlers
from pabal.wiring import Hub, workers


def made(program: client.Hub, called: str = "shop.events:hub") -> Handlers:
    return Handlers(tuple(map(handler_of, program.handlers)), called)


@asynccontextmanager
async def at_work(hub: Hub, program: client.Hub, called: str = "shop.events:hub") -> AsyncGenerator[None]:
    """Announced and working, beside the hub's own workers."""
    handlers = made(program, called)
    async with hub.transaction() as tx:
        await handlers.announce(tx)
    employed = workers(hub, handlers)
    running = [asyncio.create_task(each.run()) for each in employed]
    try:
        yield
    finally:
        for each in employed:
            each.stop()
        await asyncio.gather(*running)
