"""Streams: each message is claimed once, in order, for one of the account's streams."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any
from uuid import UUID

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.relay.delivery import stream, stream_registry
from pabal.web.sse import format_sse_event
from relay.bot import connect_stream
from relay.marker import events_before_marker
from relay.skills import send_message
from support.clusters import open_connection
from support.relay_rows import Chat, Owner, skill_response
from support.server import serve_hub
from support.wait import COUNT_LOCK_WAITS, wait_until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def address(hub: Hub) -> AsyncGenerator[str]:
    async with serve_hub(hub) as url:
        yield url


@pytest.fixture
async def owner(chat: Chat) -> Owner:
    return await chat.owner()


@pytest.fixture
async def web(address: str) -> AsyncGenerator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=address) as client:
        yield client


async def test_a_stream_sends_connected_then_due_messages_then_new_ones(
    web: httpx2.AsyncClient, address: str, chat: Chat, owner: Owner
) -> None:
    key = await chat.conversation(owner)
    assert await send_message(web, "before") == {"version": "2.0", "useCallback": True}

    async with connect_stream(address, owner.token) as client:
        assert client.status == 200
        assert client.headers["content-type"].startswith("text/event-stream")
        assert client.headers["cache-control"] == "no-cache"
        assert client.headers["x-accel-buffering"] == "no"
        first = await client.read()
        assert first is not None
        assert first.name == "connected"
        assert first.data == {"accountId": str(owner.id), "sessionId": str(owner.id), "status": "paired"}
        due = await client.next("message")
        await send_message(web, "after")
        new = await client.next("message")

    assert due.data["normalized"] == {"userId": "user", "text": "before", "channelId": "channel"}
    assert due.data["conversationKey"] == key
    assert due.data["deliveryCount"] == 1
    assert due.data["callbackExpiresAt"] > 0
    assert due.data["createdAt"].endswith("Z")
    assert due.data["kakaoPayload"]["userRequest"]["lang"] == "ko"
    assert "127.0.0.1:9/callback" not in str(due.data)
    assert new.data["normalized"]["text"] == "after"
    assert new.id > due.id
    assert client.raw.count(b"\r") == 0


async def test_a_reconnecting_client_does_not_get_messages_up_to_its_last_id(
    web: httpx2.AsyncClient, address: str, chat: Chat, owner: Owner, hub: Hub, travel: Any
) -> None:
    await chat.conversation(owner)
    await send_message(web, "one")
    async with connect_stream(address, owner.token) as client:
        await client.next("message")
        last = client.last
    await wait_until_closed(hub)

    await send_message(web, "two")
    async with connect_stream(address, owner.token, last) as reconnected:
        await reconnected.next("message")
        assert reconnected.messages() == ["two"]
        await travel(timedelta(minutes=1))  # longer than messages are kept for a disconnected client
        assert await events_before_marker(hub, web, chat, owner, reconnected) == []


async def test_messages_after_the_last_id_are_delivered_again_and_all_without_one(
    web: httpx2.AsyncClient, address: str, chat: Chat, owner: Owner, hub: Hub
) -> None:
    await chat.conversation(owner)
    async with connect_stream(address, owner.token) as client:
        await client.next("connected")
        await send_message(web, "one")
        first = await client.next("message")
        await send_message(web, "two")
        await client.next("message")
    async with connect_stream(address, owner.token, first.id) as with_last_id:
        second = await with_last_id.next_message()
        assert with_last_id.messages() == ["two"]
        assert second["deliveryCount"] == 2
        assert await events_before_marker(hub, web, chat, owner, with_last_id) == []
    async with connect_stream(address, owner.token) as without_last_id:
        await without_last_id.next_message()
        await without_last_id.next_message()
        assert without_last_id.messages() == ["one", "two"]


@pytest.mark.parametrize("has_last_id", [True, False])
async def test_a_client_that_reconnects_during_the_close_does_not_wait(
    web: httpx2.AsyncClient, address: str, chat: Chat, owner: Owner, database_urls: DatabaseUrls, *, has_last_id: bool
) -> None:
    """Each of the two transactions begins before the other commits, so neither sees the other."""
    assert database_urls.direct
    await chat.conversation(owner)
    async with (
        connect_stream(address, owner.token) as client,
        open_connection(database_urls.direct) as blocker,
        AsyncExitStack() as stack,
    ):

        async def wait_for_locks(count: int) -> None:
            async def are_waiting() -> bool:
                return await chat.db.fetchval(COUNT_LOCK_WAITS) == count

            await wait_until(are_waiting)

        await client.next("connected")
        await send_message(web, "one")
        first = await client.next("message")
        await send_message(web, "two")
        second = await client.next_message()
        async with blocker.transaction():
            await blocker.execute("select from inbound_messages where id = $1 for update", UUID(second["id"]))
            new_stream = connect_stream(address, owner.token, first.id if has_last_id else None)
            opening = asyncio.create_task(stack.enter_async_context(new_stream))
            await wait_for_locks(1)
            client.disconnect()
            await wait_for_locks(2)
        reconnected = await opening
        await reconnected.next_message()
        if not has_last_id:
            await reconnected.next_message()
        assert reconnected.messages() == (["two"] if has_last_id else ["one", "two"])


async def test_many_reconnects_replay_no_answered_message(
    web: httpx2.AsyncClient, address: str, chat: Chat, owner: Owner, hub: Hub
) -> None:
    key = await chat.conversation(owner)
    async with connect_stream(address, owner.token) as client:
        await client.next("connected")
        await send_message(web, "hello")
        message = await client.next_message()
        response = await web.post(
            "/openclaw/reply",
            headers=owner.header,
            json={"messageId": message["id"], "conversationKey": key, "response": skill_response("hi")},
        )
        assert response.status_code == 502  # no server listens at the callback, but the message is answered
    for _ in range(20):
        async with connect_stream(address, owner.token) as stream:
            await stream.next("connected")
            assert stream.messages() == []
    await wait_until_closed(hub)
    async with connect_stream(address, owner.token) as last_stream:
        await last_stream.next("connected")
        assert await events_before_marker(hub, web, chat, owner, last_stream) == []


async def test_two_streams_never_both_get_a_message_and_a_conversation_stays_with_its_stream(
    web: httpx2.AsyncClient, address: str, chat: Chat, owner: Owner, hub: Hub
) -> None:
    for user in ("ann", "ben", "cho"):
        await chat.conversation(owner, user)
    async with (
        connect_stream(address, owner.token) as first,
        connect_stream(address, await chat.session(owner.id)) as second,
    ):
        await first.next("connected")
        await second.next("connected")
        for number in range(10):
            for user in ("ann", "ben", "cho"):
                await send_message(web, f"{user} {number}", user)
        await events_before_marker(hub, web, chat, owner, first, second)

    texts = [text for client in (first, second) for text in client.messages() if text != "marker"]
    assert sorted(texts) == sorted(f"{user} {number}" for user in ("ann", "ben", "cho") for number in range(10))
    for client in (first, second):
        users = {text.split()[0] for text in client.messages()} - {"marker"}
        for user in users:
            assert [text for text in client.messages() if text.startswith(user)] == [
                f"{user} {number}" for number in range(10)
            ]


async def wait_until_closed(hub: Hub) -> None:
    """Wait until the hub has noticed the disconnect and recorded it."""
    await wait_until(lambda: len(hub.relay.stream_registry) == 0)
    await hub.relay.stream_registry.drain()


async def test_a_bot_that_takes_five_minutes_gets_its_message_once(
    web: httpx2.AsyncClient, address: str, chat: Chat, owner: Owner, hub: Hub, travel: Any
) -> None:
    await chat.conversation(owner)
    async with (
        connect_stream(address, owner.token) as client,
        connect_stream(address, await chat.session(owner.id)) as other,
    ):
        await client.next("connected")
        await other.next("connected")
        await send_message(web, "think")
        [event] = await events_before_marker(hub, web, chat, owner, client, other)
        assert event.data["normalized"]["text"] == "think"
        for _ in range(5):
            await travel(timedelta(minutes=1))  # longer than the lease: the message is due again before a keepalive
            assert await events_before_marker(hub, web, chat, owner, client, other) == []


async def test_a_held_message_is_not_delivered_twice_after_its_lease_lapsed(
    web: httpx2.AsyncClient,
    address: str,
    chat: Chat,
    owner: Owner,
    hub: Hub,
    travel: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A due message may be claimed for another stream with free slots; the stream that holds it keeps it."""
    # No keepalive during the test, as in a database outage.
    monkeypatch.setattr(stream_registry, "FULL_STREAM_CHECK_INTERVAL", 3600.0)
    monkeypatch.setattr(stream, "MAX_MESSAGES_IN_FLIGHT", 1)
    await chat.conversation(owner)
    async with connect_stream(address, owner.token) as full:
        await full.next("connected")
        await send_message(web, "think")
        assert (await full.next_message())["normalized"]["text"] == "think"
        monkeypatch.setattr(stream, "MAX_MESSAGES_IN_FLIGHT", 256)
        async with connect_stream(address, await chat.session(owner.id)) as other:
            await other.next("connected")
            for _ in range(3):
                await travel(timedelta(minutes=1))
                assert await events_before_marker(hub, web, chat, owner, full, other) == []


async def test_the_stream_of_a_sixth_token_is_refused_and_the_others_stay(
    address: str, chat: Chat, owner: Owner, hub: Hub
) -> None:
    tokens = [await chat.session(owner.id) for _ in range(5)]
    async with AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(connect_stream(address, token)) for token in tokens]
        async with connect_stream(address, owner.token) as sixth:
            assert sixth.status == 429
            assert int(sixth.headers["retry-after"]) >= 1
            assert (await sixth.body())["code"] == "RATE_LIMITED"
        assert [client.status for client in streams] == [200] * 5
        streams[0].disconnect()
        await wait_until(lambda: len(hub.relay.stream_registry) == 4)
        await hub.relay.stream_registry.drain()
        async with connect_stream(address, owner.token) as replacement:
            assert replacement.status == 200


async def test_a_webhook_in_another_process_reaches_the_stream_at_once(
    hub: Hub, database_urls: DatabaseUrls, address: str, chat: Chat, owner: Owner
) -> None:
    await chat.conversation(owner)
    async with (
        open_hub(hub.settings, database_urls) as other_hub,
        serve_hub(other_hub) as other_address,
        connect_stream(other_address, owner.token) as client,
    ):
        await client.next("connected")
        await wait_until(lambda: other_hub.doorbell.listening)
        async with httpx2.AsyncClient(base_url=address) as web:
            await send_message(web, "far")
        assert (await client.next_message())["normalized"]["text"] == "far"


async def test_an_invalid_token_opens_no_stream(address: str) -> None:
    for token in ("", "x", "prt_" + "a" * 43, "0" * 64):
        async with connect_stream(address, token) as client:
            assert client.status == 401
            assert (await client.body())["code"] == "UNAUTHORIZED"


async def test_a_stream_holds_no_database_connection(address: str, chat: Chat, hub: Hub) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(40):
            owner = await chat.owner()
            client = await stack.enter_async_context(connect_stream(address, owner.token))
            await client.next("connected")
        await wait_until(lambda: hub.db.connections_in_use() == 0)
        assert len(hub.relay.stream_registry) == 40


@given(st.text(), st.text(), st.integers(0, 2**63 - 1))
def test_any_text_is_one_event(text: str, name: str, number: int) -> None:
    block = format_sse_event("message", {"text": text, "x": name}, number)

    assert block.endswith(b"\n\n")
    assert block.count(b"\n") == 4
    assert b"\r" not in block
    assert block.split(b"\n")[0] == f"id: {number}".encode()


async def test_a_nack_in_another_process_delivers_the_message_again(
    hub: Hub, database_urls: DatabaseUrls, web: httpx2.AsyncClient, chat: Chat, owner: Owner
) -> None:
    await chat.conversation(owner)
    async with (
        open_hub(hub.settings, database_urls) as other_hub,
        serve_hub(other_hub) as other_address,
        connect_stream(other_address, owner.token) as client,
    ):
        await client.next("connected")
        await wait_until(lambda: other_hub.doorbell.listening)
        await send_message(web, "hello")
        message = await client.next_message()
        await web.post("/v1/messages/nack", headers=owner.header, json={"messageIds": [message["id"]]})

        assert (await client.next_message())["deliveryCount"] == 2


async def test_a_head_request_claims_nothing(web: httpx2.AsyncClient, chat: Chat, owner: Owner) -> None:
    await chat.conversation(owner)
    await send_message(web, "hello")

    for path in ("/openclaw/messages", "/v1/messages", "/v1/events"):
        assert (await web.head(path, headers=owner.header)).status_code == 405
    assert await chat.db.fetchval("select status from inbound_messages") == "QUEUED"
    assert (await web.head("/health")).status_code == 200


@pytest.mark.parametrize("last_event_id", ["9" * 5000, "-1", "x", "\uff19", str(2**63)])
async def test_an_invalid_last_event_id_is_ignored(address: str, chat: Chat, owner: Owner, last_event_id: str) -> None:
    async with httpx2.AsyncClient(base_url=address) as web:
        headers = {b"authorization": f"Bearer {owner.token}".encode(), b"last-event-id": last_event_id.encode()}
        async with web.stream("GET", "/v1/events", headers=headers) as response:
            assert response.status_code == 200


async def test_a_last_event_id_from_before_a_restore_is_ignored(
    web: httpx2.AsyncClient, address: str, chat: Chat, owner: Owner, hub: Hub
) -> None:
    await chat.conversation(owner)
    async with connect_stream(address, owner.token) as client:
        await client.next("connected")
        await send_message(web, "hello")
        await client.next_message()
    await wait_until_closed(hub)

    async with connect_stream(address, owner.token, 1_000_000) as reconnected:
        assert (await reconnected.next_message())["deliveryCount"] == 2
