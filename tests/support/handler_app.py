"""Somebody's program: its handlers in a worker for as long as a block lasts."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from pabal import client
from pabal.cli.handlers_app import engine_handler
from pabal.events.handlers import EventHandlers
from pabal.hub import Hub, build_workers


def made(program: client.App, called: str = "shop.events:hub") -> EventHandlers:
    return EventHandlers(tuple(map(engine_handler, program.handlers)), called)


@asynccontextmanager
async def at_work(hub: Hub, program: client.App, called: str = "shop.events:hub") -> AsyncGenerator[None]:
    """Announced and working, beside the hub's own workers."""
    handlers = made(program, called)
    async with hub.transaction() as tx:
        await handlers.subscribe_services(tx)
    employed = build_workers(hub, handlers)
    running = [asyncio.create_task(each.run()) for each in employed]
    try:
        yield
    finally:
        for each in employed:
            each.stop()
        await asyncio.gather(*running)
