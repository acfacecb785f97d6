"""A worker on the event lane for the duration of a block, and a way to wait for what it settles."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from pabal.events.consume.lane import ClaimedEvent, EventClaimFilter
from pabal.hub import Hub
from pabal.queue.worker import ItemHandler, ScheduledClaim, Worker, WorkerConfig
from support.lane_under_test import Events
from support.wait import wait_until


def make_worker(hub: Hub, handle: ItemHandler[ClaimedEvent], **config: Any) -> Worker[ClaimedEvent, EventClaimFilter]:
    async def schedule() -> list[ScheduledClaim[EventClaimFilter]]:
        return [ScheduledClaim(EventClaimFilter("minu_build")), ScheduledClaim(EventClaimFilter("minu_keep"))]

    return Worker("tester", Events.lane, hub.db, hub.doorbell, handle, schedule, WorkerConfig(**config))


@asynccontextmanager
async def run_worker(
    hub: Hub, handle: ItemHandler[ClaimedEvent], **config: Any
) -> AsyncGenerator[Worker[ClaimedEvent, EventClaimFilter]]:
    worker = make_worker(hub, handle, **config)
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await task


async def wait_for_states(events: Events, **states: int) -> None:
    """Wait until the table has this many rows in each state."""

    async def has_states() -> bool:
        return await events.states() == states

    await wait_until(has_states)
