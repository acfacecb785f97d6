"""Each kind of statement has a deadline of its own: a held lock costs no caller PABAL_STATEMENT_TIMEOUT."""

from collections.abc import AsyncGenerator
from datetime import timedelta

import httpx2
import pytest

from pabal import hub as hub_module
from pabal.db.pool import Database
from pabal.hub import PUBLISH_DEADLINE, SETTLE_DEADLINE, WEBHOOK_DEADLINE, DatabaseUrls, Hub, open_hub
from pabal.hub_workers import build_rules_handler, build_workers
from pabal.queue.worker import Worker
from pabal.settings import Settings
from support.clusters import Connection
from support.event_api import connect_service
from support.relay_rows import Chat
from support.server import serve_hub

pytestmark = pytest.mark.anyio

LONG, SHORT = timedelta(minutes=2), timedelta(milliseconds=300)


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"statement_timeout": LONG})


async def test_the_work_of_each_kind_has_its_deadline(hub: Hub) -> None:
    relay = hub.relay
    databases: dict[timedelta, list[Database]] = {
        WEBHOOK_DEADLINE: [relay.webhook_batcher._db, relay.held_webhooks._db, relay.held_webhooks._takes._db],
        PUBLISH_DEADLINE: [hub.publish_db, hub.publisher._db],
        SETTLE_DEADLINE: [
            hub.settle_db,
            relay.callbacks._db,
            relay.callbacks._settlements._db,
            relay.replies._claims._db,
            relay.replies._confirmations._db,
            relay.replies._records._db,
            relay.replies._further_replies._db,
            hub.pusher._db,
            hub.dispatcher._db,
            build_rules_handler(hub)._db,
            *(worker.db if isinstance(worker, Worker) else worker._db for worker in build_workers(hub)),
        ],
    }
    for deadline, users in databases.items():
        assert [db._deadline for db in users] == [deadline] * len(users)


@pytest.fixture
async def hurried_hub(
    settings: Settings, database_urls: DatabaseUrls, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[Hub]:
    """A hub that settles and publishes in a short time, or not."""
    monkeypatch.setattr(hub_module, "SETTLE_DEADLINE", SHORT)
    monkeypatch.setattr(hub_module, "PUBLISH_DEADLINE", SHORT)
    async with open_hub(settings, database_urls) as hub:
        yield hub


@pytest.fixture
async def hurried_web(hurried_hub: Hub) -> AsyncGenerator[httpx2.AsyncClient]:
    async with serve_hub(hurried_hub) as address, httpx2.AsyncClient(base_url=address, timeout=30) as client:
        yield client


async def test_requests_of_services_end_at_their_deadline(
    hurried_hub: Hub, hurried_web: httpx2.AsyncClient, owner: Connection
) -> None:
    shop = await connect_service(hurried_hub, hurried_web, "shop")
    await shop.publish(target_service="shop")
    [event] = await shop.claim()
    receipts = {"receipts": [event["receipt"]]}
    async with owner.transaction():
        await owner.execute("lock table event_queue in access exclusive mode")
        await shop.call("POST", "ack", json=receipts, status=503)
        await shop.call("POST", "nack", json=receipts | {"error": "boom"}, status=503)
        await shop.call("POST", "extend", json=receipts | {"lease_seconds": 30}, status=503)
        await shop.call("POST", "events/batch", json={"events": [{"event_type": "order.paid"}]}, status=503)


async def test_requests_of_bots_end_at_their_deadline(
    hurried_hub: Hub, hurried_web: httpx2.AsyncClient, owner: Connection
) -> None:
    bot = await Chat(owner).owner()
    message = await Chat(owner).message(bot, await Chat(owner).conversation(bot), None)
    async with owner.transaction():
        await owner.execute("lock table inbound_messages in access exclusive mode")
        for action, options in (("ack", {}), ("nack", {}), ("extend", {"lease": 30})):
            body = {"messageIds": [str(message)], **options}
            response = await hurried_web.post(f"/openclaw/messages/{action}", json=body, headers=bot.header)
            assert response.status_code == 503, response.text
