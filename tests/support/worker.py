"""A worker on the event lane for the duration of a block, and a way to wait for what it settles."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from pabal.events.lane import ClaimedEvent
from pabal.hub import Hub
from pabal.queue.worker import ItemHandler, Worker, WorkerConfig
from support.lane_under_test import Events
from support.wait import until


def make_worker(hub: Hub, handle: ItemHandler[ClaimedEvent], **config: Any) -> Worker[ClaimedEvent]:
    async def schedule() -> list[dict[str, str]]:
        return [{"service": "minu_build"}, {"service": "minu_keep"}]

    return Worker("tester", Events.lane, hub.db, hub.doorbell, handle, schedule, WorkerConfig(**config))


@asynccontextmanager
async def working(hub: Hub, handle: ItemHandler[ClaimedEvent], **config: Any) -> AsyncGenerator[Worker[ClaimedEvent]]:
    worker = make_worker(hub, handle, **config)
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await task


async def settled(events: Events, **states: int) -> None:
    """Wait until the table has this many rows in each state."""

    async def has_states() -> bool:
        return await events.states() == states

    await until(has_states)
