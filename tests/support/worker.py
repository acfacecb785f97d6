"""A worker on the event lane for as long as a block lasts, and ways to wait for what it does."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from pabal.events.lane import ClaimedEvent
from pabal.hub import Hub
from pabal.queue.worker import ItemHandler, Worker, WorkerConfig
from support.lane_under_test import Events
from support.wait import until


def employ(hub: Hub, handle: ItemHandler[ClaimedEvent], **pace: Any) -> Worker[ClaimedEvent]:
    async def rota() -> list[dict[str, str]]:
        return [{"service": "minu_build"}, {"service": "minu_keep"}]

    return Worker("tester", Events.lane, hub.db, hub.doorbell, handle, rota, WorkerConfig(**pace))


@asynccontextmanager
async def working(hub: Hub, handle: ItemHandler[ClaimedEvent], **pace: Any) -> AsyncGenerator[Worker[ClaimedEvent]]:
    worker = employ(hub, handle, **pace)
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await running


async def settled(events: Events, **wanted: int) -> None:
    """Wait until the table says so."""

    async def said() -> bool:
        return await events.states() == wanted

    await until(said)
