"""Run the handlers of a program in a worker during a block."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pabal_client as client
from pabal.cli.events.handlers_app import engine_handler
from pabal.events.consume.handlers import EventHandlers
from pabal.hub import Hub
from pabal.hub_workers import build_workers


def build_handlers(program: client.App, name: str = "shop.events:hub") -> EventHandlers:
    return EventHandlers(tuple(map(engine_handler, program.handlers)), name)


@asynccontextmanager
async def run_program(hub: Hub, program: client.App, name: str = "shop.events:hub") -> AsyncGenerator[None]:
    """Subscribe the program and run it beside the hub's workers."""
    handlers = build_handlers(program, name)
    async with hub.transaction() as tx:
        await handlers.subscribe_services(tx)
    workers = build_workers(hub, handlers)
    tasks = [asyncio.create_task(worker.run()) for worker in workers]
    try:
        yield
    finally:
        for worker in workers:
            worker.stop()
        await asyncio.gather(*tasks)
