"""Subscriptions, published events, and the hub's workers during a block."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import msgspec

from pabal.core.actor import Actor
from pabal.events.events import Event, EventAccess, find_event
from pabal.events.publish.publish import EventDraft, PublishResult, publish_events
from pabal.events.push.pusher import Pusher
from pabal.events.subscriptions import (
    Subscription,
    SubscriptionDraft,
    add_subscription,
    find_subscription,
    pause_subscription,
    resume_subscription,
)
from pabal.hub import Hub
from pabal.hub_workers import build_push_worker, build_workers
from pabal.queue.worker import WorkerConfig
from support.wait import wait_until

TESTER = Actor("tester")
ALL_ACCESS = EventAccess("hub", all_services=True)


async def subscribe(
    hub: Hub, service: str, *event_types: str, url: str | None = None, within: int = 15
) -> tuple[Subscription, str]:
    """Add a subscription; returns it with its secret, which is empty without a URL."""
    draft = SubscriptionDraft(service, event_types, url, timeout_seconds=within)
    async with hub.transaction() as tx:
        added, secret = await add_subscription(tx, hub.key_ring, draft, TESTER)
    return added, secret or ""


async def reload_subscription(hub: Hub, subscription: Subscription) -> Subscription:
    """The current row of a subscription."""
    async with hub.autocommit() as tx:
        return await find_subscription(tx, subscription.id, ALL_ACCESS)


async def publish_test_event(
    hub: Hub, event_type: str, target: str | None = "minu_build", payload: Any = None, **options: Any
) -> UUID:
    """Publish an event of minu_find; returns its id."""
    draft = EventDraft("minu_find", event_type, msgspec.json.encode(payload or {}), target, **options)
    async with hub.transaction() as tx:
        [published] = await publish_events(tx, [draft])
    assert isinstance(published, PublishResult)
    return published.id


async def load_event(hub: Hub, row: UUID) -> Event:
    async with hub.autocommit() as tx:
        return await find_event(tx, row, ALL_ACCESS)


async def wait_for_status(hub: Hub, row: UUID, status: str) -> Event:
    """Wait until the event has this status; returns it."""

    async def has_status() -> bool:
        return (await load_event(hub, row)).status == status

    await wait_until(has_status)
    return await load_event(hub, row)


async def wait_for_failures(hub: Hub, row: UUID, times: int = 1) -> Event:
    """Wait until this many attempts failed and the event is pending again; returns it."""

    async def has_status() -> bool:
        current = await load_event(hub, row)
        return len(current.error_history or ()) == times and current.status == "pending"

    await wait_until(has_status)
    return await load_event(hub, row)


@asynccontextmanager
async def run_workers(hub: Hub, pusher: Pusher | None = None, **config: Any) -> AsyncGenerator[None]:
    """Run the hub's workers, or one worker with the given pusher."""
    workers = [build_push_worker(hub, pusher, "push:tester", WorkerConfig(**config))] if pusher else build_workers(hub)
    tasks = [asyncio.create_task(worker.run()) for worker in workers]
    try:
        yield
    finally:
        for worker in workers:
            worker.stop()
        await asyncio.gather(*tasks)


async def pause(hub: Hub, subscription: Subscription) -> None:
    async with hub.transaction() as tx:
        await pause_subscription(tx, subscription.id, ALL_ACCESS, TESTER)


async def resume(hub: Hub, subscription: Subscription) -> None:
    async with hub.transaction() as tx:
        await resume_subscription(tx, subscription.id, ALL_ACCESS, TESTER)
