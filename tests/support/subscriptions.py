"""Services that have subscribed, and the hub's own workers for as long as a block lasts."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import msgspec

from pabal.core.actor import Actor
from pabal.events.events import Event, EventAccess, find_event
from pabal.events.publish import EventDraft, PublishResult, publish_events
from pabal.events.push import Pusher, PushLane
from pabal.events.subscriptions import (
    Subscription,
    SubscriptionDraft,
    add_subscription,
    find_subscription,
    pause_subscription,
    resume_subscription,
)
from pabal.hub import Hub, build_workers
from pabal.queue.worker import Worker, WorkerConfig
from support.wait import until

TESTER = Actor("tester")
EVERYBODY = EventAccess("hub", all_services=True)


async def subscribe(
    hub: Hub, service: str, *event_types: str, url: str | None = None, within: int = 15
) -> tuple[Subscription, str]:
    """A subscription and its secret; one without a URL has an empty one."""
    draft = SubscriptionDraft(service, event_types, url, timeout_seconds=within)
    async with hub.transaction() as tx:
        made, secret = await add_subscription(tx, hub.key_ring, draft, TESTER)
    return made, secret or ""


async def seen(hub: Hub, subscription: Subscription) -> Subscription:
    """The subscription as it stands now."""
    async with hub.autocommit() as tx:
        return await find_subscription(tx, subscription.id, EVERYBODY)


async def say(hub: Hub, event_type: str, target: str | None = "minu_build", payload: Any = None, **how: Any) -> UUID:
    """Publish an event of minu_find; its id."""
    draft = EventDraft("minu_find", event_type, msgspec.json.encode(payload or {}), target, **how)
    async with hub.transaction() as tx:
        [published] = await publish_events(tx, [draft])
    assert isinstance(published, PublishResult)
    return published.id


async def event(hub: Hub, row: UUID) -> Event:
    async with hub.autocommit() as tx:
        return await find_event(tx, row, EVERYBODY)


async def ends(hub: Hub, row: UUID, status: str) -> Event:
    """The event, once it has come to this."""

    async def there() -> bool:
        return (await event(hub, row)).status == status

    await until(there)
    return await event(hub, row)


async def fails(hub: Hub, row: UUID, times: int = 1) -> Event:
    """The event, once so many attempts have failed and it waits for the next."""

    async def there() -> bool:
        found = await event(hub, row)
        return len(found.error_history or ()) == times and found.status == "pending"

    await until(there)
    return await event(hub, row)


@asynccontextmanager
async def pushing(hub: Hub, pusher: Pusher | None = None, **pace: Any) -> AsyncGenerator[None]:
    """The hub's workers, or one with a pusher of the test's own."""
    employed = (
        [Worker("push:tester", PushLane(), hub.db, hub.doorbell, pusher.handle, pusher.schedule, WorkerConfig(**pace))]
        if pusher
        else build_workers(hub)
    )
    running = [asyncio.create_task(each.run()) for each in employed]
    try:
        yield
    finally:
        for each in employed:
            each.stop()
        await asyncio.gather(*running)


async def pause(hub: Hub, subscription: Subscription) -> None:
    async with hub.transaction() as tx:
        await pause_subscription(tx, subscription.id, EVERYBODY, TESTER)


async def resume(hub: Hub, subscription: Subscription) -> None:
    async with hub.transaction() as tx:
        await resume_subscription(tx, subscription.id, EVERYBODY, TESTER)
