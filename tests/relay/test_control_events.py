"""Changes of a pairing, token or account reach open streams at once, in every process."""

from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

import httpx2
import pytest

from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.relay.accounts import delete_account, disable_account, rotate_relay_token
from relay.bot import connect_stream
from relay.marker import events_before_marker, mark
from relay.people import TESTER
from relay.skills import USE_CALLBACK, send_message, text_of
from support.relay_rows import Chat
from support.server import serve_hub
from support.wait import wait_until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def other_address(hub: Hub, database_urls: DatabaseUrls) -> AsyncGenerator[str]:
    """The address of another hub process, to which the streams are connected."""
    async with open_hub(hub.settings, database_urls) as other_hub, serve_hub(other_hub) as address:
        await wait_until(lambda: other_hub.doorbell.listening)
        yield address


async def create_session(web: httpx2.AsyncClient) -> dict[str, Any]:
    return (await web.post("/v1/sessions/create", json={})).json()


async def test_a_stream_opened_before_pairing_continues_and_gets_messages(
    web: httpx2.AsyncClient, other_address: str
) -> None:
    new_session = await create_session(web)
    async with connect_stream(other_address, new_session["sessionToken"]) as client:
        connected = await client.next("connected")
        assert connected.data["accountId"] == ""
        assert connected.data["status"] == "pending_pairing"
        await send_message(web, f"/pair {new_session['pairingCode']}")
        paired = await client.next("pairing_complete")
        assert paired.data["kakaoUserId"] == "user"
        assert paired.data["conversationKey"] == "channel:user"
        assert paired.id == connected.id
        assert await send_message(web, "hello") == USE_CALLBACK
        message = await client.next_message()

    assert message["normalized"]["text"] == "hello"
    status = (await web.get(f"/v1/sessions/{new_session['sessionToken']}/status")).json()
    assert status["status"] == "paired"
    assert status["accountId"] == paired.data["accountId"]


async def test_a_client_that_reconnects_after_pairing_misses_nothing(
    web: httpx2.AsyncClient, other_address: str
) -> None:
    new_session = await create_session(web)
    async with connect_stream(other_address, new_session["sessionToken"]) as client:
        await client.next("connected")
        await send_message(web, f"/pair {new_session['pairingCode']}")
        await client.next("pairing_complete")
        last = client.last
    await send_message(web, "during the disconnect")
    async with connect_stream(other_address, new_session["sessionToken"], last) as reconnected:
        connected = await reconnected.next("connected")
        assert connected.data["status"] == "paired"
        assert (await reconnected.next_message())["normalized"]["text"] == "during the disconnect"


async def test_an_expired_code_ends_its_stream_with_an_event(
    web: httpx2.AsyncClient, other_address: str, travel: Any
) -> None:
    new_session = await create_session(web)
    async with connect_stream(other_address, new_session["sessionToken"]) as client:
        await client.next("connected")
        await travel(timedelta(minutes=6))
        expired = await client.next("pairing_expired")
        assert expired.data["reason"]
        assert await client.read() is None


async def test_unpairing_sends_an_event_and_stops_messages(
    hub: Hub, web: httpx2.AsyncClient, other_address: str, chat: Chat
) -> None:
    owner = await chat.owner()
    await chat.conversation(owner)
    async with connect_stream(other_address, owner.token) as client:
        await client.next("connected")
        await send_message(web, "/unpair")
        event = await client.next("unpaired")
        assert event.data == {"conversationKey": "channel:user", "reason": "unpaired"}
        assert "template" in await send_message(web, "hello?")
        assert await events_before_marker(hub, web, chat, owner, client) == []


async def test_queued_messages_of_an_unpaired_user_are_not_delivered(
    hub: Hub, web: httpx2.AsyncClient, other_address: str, chat: Chat
) -> None:
    owner = await chat.owner()
    await chat.conversation(owner)
    await send_message(web, "private")
    await send_message(web, "/unpair")

    async with connect_stream(other_address, owner.token) as client:
        await client.next("connected")
        assert await events_before_marker(hub, web, chat, owner, client) == []
    status_query = "select (status, reason)::text from inbound_messages order by seq limit 1"
    assert await chat.db.fetchval(status_query) == "(CANCELLED,unpaired)"


async def test_a_user_who_pairs_with_another_bot_is_unpaired_from_the_first(
    hub: Hub, web: httpx2.AsyncClient, other_address: str, chat: Chat
) -> None:
    owner = await chat.owner()
    await chat.conversation(owner)
    new_session = await create_session(web)
    async with (
        connect_stream(other_address, owner.token) as old_stream,
        connect_stream(other_address, new_session["sessionToken"]) as new_stream,
    ):
        await old_stream.next("connected")
        await new_stream.next("connected")
        await send_message(web, f"/pair {new_session['pairingCode']}")
        assert (await old_stream.next("unpaired")).data["reason"] == "replaced"
        await new_stream.next("pairing_complete")
        await send_message(web, "hello")
        assert (await new_stream.next_message())["normalized"]["text"] == "hello"
        assert await events_before_marker(hub, web, chat, owner, old_stream) == []


async def test_disabling_an_account_ends_its_streams_and_refuses_new_ones(
    hub: Hub, web: httpx2.AsyncClient, other_address: str, chat: Chat
) -> None:
    owner = await chat.owner()
    await chat.conversation(owner)
    async with connect_stream(other_address, owner.token) as client:
        await client.next("connected")
        async with hub.transaction() as tx:
            await disable_account(tx, owner.id, TESTER)
        assert (await client.next("error")).data["code"] == "ACCOUNT_DISABLED"
        assert await client.read() is None
    async with connect_stream(other_address, owner.token) as refused:
        assert refused.status == 403
        assert (await refused.body())["code"] == "ACCOUNT_DISABLED"
    assert text_of(await send_message(web, "hello"))


async def test_rotating_a_token_ends_its_streams_and_the_new_token_works(
    hub: Hub, other_address: str, chat: Chat
) -> None:
    owner = await chat.owner()
    session_token = await chat.session(owner.id)
    async with (
        connect_stream(other_address, owner.token) as client,
        connect_stream(other_address, session_token) as session_stream,
    ):
        await client.next("connected")
        await session_stream.next("connected")
        async with hub.transaction() as tx:
            token = await rotate_relay_token(tx, owner.id, TESTER)
        assert (await client.next("error")).data["code"] == "UNAUTHORIZED"
        assert await client.read() is None
        assert await session_stream.until(await mark(hub, owner.id)) == []
    async with connect_stream(other_address, owner.token) as old_stream:
        assert old_stream.status == 401
    async with connect_stream(other_address, token) as new_stream:
        assert new_stream.status == 200


async def test_deleting_an_account_ends_its_streams(hub: Hub, other_address: str, chat: Chat) -> None:
    owner = await chat.owner()
    session_token = await chat.session(owner.id)
    async with (
        connect_stream(other_address, owner.token) as client,
        connect_stream(other_address, session_token) as session_stream,
    ):
        await client.next("connected")
        await session_stream.next("connected")
        async with hub.transaction() as tx:
            await delete_account(tx, owner.id, TESTER)
        for stream in (client, session_stream):
            assert (await stream.next("error")).data["code"] == "UNAUTHORIZED"
            assert await stream.read() is None


async def test_a_stopping_hub_ends_streams_and_keeps_their_messages(
    hub: Hub, web: httpx2.AsyncClient, database_urls: DatabaseUrls, chat: Chat
) -> None:
    owner = await chat.owner()
    await chat.conversation(owner)
    async with (
        open_hub(hub.settings, database_urls) as other_hub,
        serve_hub(other_hub) as address,
        connect_stream(address, owner.token) as client,
    ):
        await client.next("connected")
        await send_message(web, "hello")
        await client.next_message()
        await other_hub.begin_shutdown()
        assert await client.read() is None
    held_by = await chat.db.fetchval("select held_by from inbound_messages where status = 'DELIVERED'")
    assert held_by.startswith(f"closed:{owner.id}:")
    assert await chat.db.fetchval("select count(*) from relay_streams") == 0


async def test_a_new_token_does_not_get_the_revocation_of_the_old_one(hub: Hub, other_address: str, chat: Chat) -> None:
    """Even directly after the rotation, and in a process that read the control event before."""
    owner = await chat.owner()
    async with connect_stream(other_address, await chat.session(owner.id)) as other:
        await other.next("connected")
        for _ in range(5):
            async with hub.transaction() as tx:
                token = await rotate_relay_token(tx, owner.id, TESTER)
            async with connect_stream(other_address, token) as client:
                await client.next("connected")
                assert await client.until(await mark(hub, owner.id)) == []


async def test_rotating_a_token_deletes_unused_pairing_codes(hub: Hub, web: httpx2.AsyncClient, chat: Chat) -> None:
    owner = await chat.owner()
    code = (await web.post("/v1/pairing/generate", json={}, headers=owner.header)).json()["code"]
    async with hub.transaction() as tx:
        await rotate_relay_token(tx, owner.id, TESTER)

    await send_message(web, f"/pair {code}")

    assert await chat.db.fetchval("select state from conversation_mappings") == "UNPAIRED"
