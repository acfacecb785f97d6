"""Rules under test: one to begin with, workers that apply them, and events that they get."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

from notices import TESTER, sql
from pabal.events.lane import HeldEvent
from pabal.events.together import Together, at_settling
from pabal.notifications import rules
from pabal.notifications.rules import Draft, Rule
from pabal.queue.worker import Pace, Worker
from pabal.wiring import Hub, Roads, for_the_hub, ruled
from patience import until
from subscribed import event, say

BUYER: dict[str, Any] = {"user": {"discord_id": "100"}, "item": "Nitro", "amount": 12900, "currency": "KRW"}
MINUTE = timedelta(minutes=1)


def paid(**how: Any) -> Draft:
    said: dict[str, Any] = {
        "name": "paid",
        "event_pattern": "order.paid",
        "template_key": "payment.succeeded",
        "recipients": ["user.discord_id"],
        "channels": ["user_dm"],
    }
    return Draft(**(said | how))


async def add(hub: Hub, **how: Any) -> Rule:
    async with hub.transaction() as tx:
        return await rules.add(tx, hub.catalogue, paid(**how), TESTER)


def rules_worker(hub: Hub, lane: Together | None = None) -> Worker[HeldEvent]:
    pace = Pace(floor=timedelta(seconds=1))
    return Worker("rules:tester", lane or ruled(hub.catalogue), hub.db, hub.doorbell, at_settling, for_the_hub, pace)


@asynccontextmanager
async def ruling(hub: Hub, *workers: Worker[HeldEvent]) -> AsyncGenerator[None]:
    """Workers that apply the rules, for as long as the block lasts."""
    employed = workers or (rules_worker(hub),)
    running = [asyncio.create_task(each.run()) for each in employed]
    try:
        yield
    finally:
        for each in employed:
            each.stop()
        await asyncio.gather(*running)


async def delivery(roads: Roads, parent: UUID) -> UUID:
    """What is owed to the hub of an event."""
    return await sql(roads, "select id from public.event_queue where parent_id = $1 and target_service = 'hub'", parent)


async def publish_and_settle(hub: Hub, roads: Roads, payload: Any = None, **how: Any) -> tuple[UUID, UUID]:
    """Publish an event and let the rules have it: the event, and the hub's delivery of it when that has ended."""
    published = await say(hub, "order.paid", payload=payload or BUYER, **how)
    owed = await delivery(roads, published)

    async def ended() -> bool:
        return (await event(hub, owed)).status in {"completed", "failed"}

    async with ruling(hub):
        await until(ended)
    return published, owed
