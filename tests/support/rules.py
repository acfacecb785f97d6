"""Rules under test: one to begin with, workers that apply them, and events that they get."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

from pabal.events.lane import LANE, ClaimedEvent
from pabal.events.transactional import TransactionalHandler
from pabal.hub import DatabaseUrls, Hub, build_rules_handler, hub_claim_filters
from pabal.notifications.rules.rules import Rule, RuleDraft, add_rule
from pabal.queue.worker import Worker, WorkerConfig
from support.notifications import TESTER, sql
from support.subscriptions import event, say
from support.wait import until

BUYER: dict[str, Any] = {"user": {"discord_id": "100"}, "item": "Nitro", "amount": 12900, "currency": "KRW"}
MINUTE = timedelta(minutes=1)


def paid(**how: Any) -> RuleDraft:
    said: dict[str, Any] = {
        "name": "paid",
        "event_pattern": "order.paid",
        "template_key": "payment.succeeded",
        "recipients": ["user.discord_id"],
        "channels": ["user_dm"],
    }
    return RuleDraft(**(said | how))


async def add(hub: Hub, **how: Any) -> Rule:
    async with hub.transaction() as tx:
        return await add_rule(tx, hub.templates, paid(**how), TESTER)


def rules_worker(hub: Hub, handler: TransactionalHandler | None = None) -> Worker[ClaimedEvent]:
    return Worker(
        "rules:tester",
        LANE,
        hub.db,
        hub.doorbell,
        (handler or build_rules_handler(hub)).handle,
        hub_claim_filters,
        WorkerConfig(poll_interval=timedelta(seconds=1)),
    )


@asynccontextmanager
async def ruling(hub: Hub, *workers: Worker[ClaimedEvent]) -> AsyncGenerator[None]:
    """Workers that apply the rules, for as long as the block lasts."""
    employed = workers or (rules_worker(hub),)
    running = [asyncio.create_task(each.run()) for each in employed]
    try:
        yield
    finally:
        for each in employed:
            each.stop()
        await asyncio.gather(*running)


async def delivery(database_urls: DatabaseUrls, parent: UUID) -> UUID:
    """What is owed to the hub of an event."""
    return await sql(
        database_urls, "select id from public.event_queue where parent_id = $1 and target_service = 'hub'", parent
    )


async def publish_and_settle(
    hub: Hub, database_urls: DatabaseUrls, payload: Any = None, **how: Any
) -> tuple[UUID, UUID]:
    """Publish an event and let the rules have it: the event, and the hub's delivery of it when that has ended."""
    published = await say(hub, "order.paid", payload=payload or BUYER, **how)
    owed = await delivery(database_urls, published)

    async def ended() -> bool:
        return (await event(hub, owed)).status in {"completed", "failed"}

    async with ruling(hub):
        await until(ended)
    return published, owed
