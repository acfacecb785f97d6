"""Helpers to add rules, run the workers that apply them, and publish events."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

from pabal.events.consume.lane import ClaimedEvent, EventClaimFilter
from pabal.events.consume.transactional import TransactionalHandler
from pabal.hub import DatabaseUrls, Hub
from pabal.hub_workers import build_rules_worker
from pabal.notifications.rules.rules import Rule, RuleDraft, add_rule
from pabal.queue.worker import Worker, WorkerConfig
from support.notifications import TESTER, sql
from support.subscriptions import load_event, publish_test_event
from support.wait import wait_until

BUYER: dict[str, Any] = {"user": {"discord_id": "100"}, "item": "Nitro", "amount": 12900, "currency": "KRW"}
MINUTE = timedelta(minutes=1)


def rule_draft(**overrides: Any) -> RuleDraft:
    values: dict[str, Any] = {
        "name": "paid",
        "event_pattern": "order.paid",
        "template_key": "payment.succeeded",
        "recipients": ["user.discord_id"],
        "channels": ["user_dm"],
    }
    return RuleDraft(**(values | overrides))


async def add_test_rule(hub: Hub, **overrides: Any) -> Rule:
    async with hub.transaction() as tx:
        return await add_rule(tx, hub.templates, rule_draft(**overrides), TESTER)


def rules_worker(hub: Hub, handler: TransactionalHandler | None = None) -> Worker[ClaimedEvent, EventClaimFilter]:
    return build_rules_worker(hub, "rules:tester", WorkerConfig(poll_interval=timedelta(seconds=1)), handler)


@asynccontextmanager
async def run_rules_workers(hub: Hub, *workers: Worker[ClaimedEvent, EventClaimFilter]) -> AsyncGenerator[None]:
    """Run workers that apply the rules during the block."""
    running_workers = workers or (rules_worker(hub),)
    running = [asyncio.create_task(item.run()) for item in running_workers]
    try:
        yield
    finally:
        for item in running_workers:
            item.stop()
        await asyncio.gather(*running)


async def hub_delivery(database_urls: DatabaseUrls, parent: UUID) -> UUID:
    """The id of the hub's delivery of an event."""
    return await sql(
        database_urls, "select id from public.event_queue where parent_id = $1 and target_service = 'hub'", parent
    )


async def publish_and_settle(
    hub: Hub, database_urls: DatabaseUrls, payload: Any = None, **overrides: Any
) -> tuple[UUID, UUID]:
    """Publish an event and apply the rules. Return the ids of the event and of the hub's finished delivery."""
    published = await publish_test_event(hub, "order.paid", payload=payload or BUYER, **overrides)
    delivery_id = await hub_delivery(database_urls, published)

    async def ended() -> bool:
        return (await load_event(hub, delivery_id)).status in {"completed", "failed"}

    async with run_rules_workers(hub):
        await wait_until(ended)
    return published, delivery_id
