"""Webhooks during a database outage: bounded memory, and recalled callbacks afterwards."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta

import httpx2
import pytest

from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.relay.webhook import handle, recall
from pabal.relay.webhook.skill_response import KOREAN_TEXTS
from pabal.settings import Settings
from relay.skills import USE_CALLBACK, send_message, text_of
from support.fault_proxy import FaultProxy, run_fault_proxy
from support.relay_rows import Chat
from support.server import serve_hub
from support.wait import wait_until

pytestmark = pytest.mark.anyio

MAX_RECALLS, WEBHOOKS = 20, 60
DEFAULT_TIMEOUT = handle.WEBHOOK_TIMEOUT


@dataclass(frozen=True, slots=True)
class Outage:
    """A hub behind a proxy that can cut its database off."""

    hub: Hub
    web: httpx2.AsyncClient
    proxy: FaultProxy
    monkeypatch: pytest.MonkeyPatch

    def begin(self) -> None:
        """Drop all traffic and reset open connections, with a short webhook timeout."""
        self.monkeypatch.setattr(handle, "WEBHOOK_TIMEOUT", 0.3)
        self.proxy.drop_bytes()
        self.proxy.reset()

    def end(self) -> None:
        self.proxy.pass_bytes()
        self.proxy.reset()
        self.monkeypatch.setattr(handle, "WEBHOOK_TIMEOUT", DEFAULT_TIMEOUT)

    async def send_webhooks(self) -> list[str]:
        """Many users write at once; returns the texts they get."""
        responses = await asyncio.gather(
            *(send_message(self.web, "hello", f"user-{number}") for number in range(WEBHOOKS))
        )
        return [text_of(response) for response in responses]


@pytest.fixture
async def outage(
    database_urls: DatabaseUrls, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[Outage]:
    monkeypatch.setattr(recall, "MAX_PENDING_RECALLS", MAX_RECALLS)
    short_timeout = settings.model_copy(update={"connect_timeout": timedelta(seconds=1)})
    async with AsyncExitStack() as stack:
        proxy, url = await stack.enter_async_context(run_fault_proxy(database_urls.main))
        hub = await stack.enter_async_context(open_hub(short_timeout, DatabaseUrls(url, None)))
        address = await stack.enter_async_context(serve_hub(hub))
        web = await stack.enter_async_context(httpx2.AsyncClient(base_url=address))
        yield Outage(hub, web, proxy, monkeypatch)
        proxy.pass_bytes()


async def test_webhooks_during_an_outage_leave_a_bounded_number_of_recalls(outage: Outage, chat: Chat) -> None:
    owner = await chat.owner()
    await chat.conversation(owner)
    assert await send_message(outage.web, "before") == USE_CALLBACK
    outage.begin()

    texts = [text for _ in range(3) for text in await outage.send_webhooks()]

    assert {*texts} <= {KOREAN_TEXTS.unavailable, KOREAN_TEXTS.too_late}
    # Concurrent webhooks check the limit before any of them is counted.
    assert len(outage.hub.relay.recalls) <= MAX_RECALLS + WEBHOOKS
    assert outage.hub.relay.recalls.is_full
    assert text_of(await send_message(outage.web, "one more")) == KOREAN_TEXTS.unavailable
    outage.end()
    await wait_until(lambda: len(outage.hub.relay.recalls) == 0)
    assert await send_message(outage.web, "after") == USE_CALLBACK


async def test_expired_callbacks_are_not_recalled(outage: Outage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recall, "KAKAO_CALLBACK_LIFETIME", timedelta(seconds=0.5))
    monkeypatch.setattr(recall, "RECALL_RETRY_DELAY", 0.1)
    outage.begin()
    await outage.send_webhooks()

    await wait_until(lambda: len(outage.hub.relay.recalls) == 0)


async def test_a_message_stored_after_the_deadline_loses_its_callback(
    outage: Outage, chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handle, "WEBHOOK_TIMEOUT", 2.0)  # enough for a busy machine to reach the locked table
    owner = await chat.owner()
    await chat.conversation(owner)
    await chat.db.execute("begin")
    await chat.db.execute("lock table inbound_messages")
    response = await send_message(outage.web, "hello")
    await chat.db.execute("commit")
    await outage.hub.relay.recalls.drain()

    assert text_of(response) == KOREAN_TEXTS.too_late
    assert await chat.db.fetchval("select callback_url is null from inbound_messages")
    assert len(outage.hub.relay.recalls) == 0
