"""A webhook that is not stored leaves nothing in memory."""

import gc
import weakref

import asyncpg
import pytest

from pabal.db.errors import RetryableError
from pabal.hub import DatabaseUrls, Hub
from pabal.queue import batcher
from pabal.relay.webhook.payload import InboundPayload
from pabal.relay.webhook.receive import InboundDraft
from support.relay_rows import Chat

pytestmark = pytest.mark.anyio


class WatchedBody(str):
    """A webhook's JSON that a weak reference can point to."""

    __slots__ = ("__weakref__",)


async def test_a_webhook_refused_for_a_locked_conversation_is_released(
    hub: Hub, database_urls: DatabaseUrls, chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception shared by all callers collects their tracebacks, and with them their request bodies."""
    monkeypatch.setattr(batcher, "RETRY_DELAY", 0.001)
    monkeypatch.setattr(hub.relay.webhook_batcher, "_contention_timeout", 0)
    await chat.conversation(await chat.owner())
    assert database_urls.direct
    blocker = await asyncpg.connect(database_urls.direct)
    try:
        await blocker.execute("begin")
        await blocker.execute("select from conversation_mappings for update")
        body = await put_and_fail(hub)
    finally:
        await blocker.close()  # also ends the loop step that still holds the failed future

    gc.collect()

    assert body() is None


async def put_and_fail(hub: Hub) -> weakref.ref[WatchedBody]:
    body = WatchedBody("{}")
    draft = InboundDraft(InboundPayload("channel", "user", "hello", None, "event", body), is_command=False)
    with pytest.raises(RetryableError):
        await hub.relay.webhook_batcher.put(draft)
    return weakref.ref(body)
