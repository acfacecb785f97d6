"""Clients that share a token: a reconnecting client resumes its own messages at once, those of others later."""

from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

import httpx2
import pytest

from pabal.hub import DatabaseUrls, Hub, open_hub
from relay.bot import StreamClient, connect_stream
from relay.skills import send_message
from support.relay_rows import Chat, Owner
from support.server import serve_hub
from support.wait import wait_until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def owner(chat: Chat) -> Owner:
    return await chat.owner()


@pytest.fixture
async def address(hub: Hub) -> AsyncGenerator[str]:
    async with serve_hub(hub) as url:
        yield url


@pytest.fixture
async def other_address(hub: Hub, database_urls: DatabaseUrls) -> AsyncGenerator[str]:
    """Another hub process, which has not noticed that a client disconnected."""
    async with open_hub(hub.settings, database_urls) as other_hub, serve_hub(other_hub) as url:
        await wait_until(lambda: other_hub.doorbell.listening)
        yield url


@pytest.fixture
async def web(address: str) -> AsyncGenerator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=address) as client:
        yield client


async def holder(chat: Chat, message: str) -> str:
    """The id of the stream that holds a message."""
    held_by: str = await chat.db.fetchval("select held_by from inbound_messages where id = $1::text::uuid", message)
    return held_by


async def deliver(client: StreamClient, web: httpx2.AsyncClient, user: str, text: str) -> str:
    """A user writes to the only stream, or the one with their conversation; returns the message id."""
    await send_message(web, text, user)
    message = await client.next_message()
    assert message["normalized"]["text"] == text
    return message["id"]


async def test_messages_of_another_clients_stream_are_left_to_their_lease(
    web: httpx2.AsyncClient, address: str, other_address: str, chat: Chat, owner: Owner, travel: Any
) -> None:
    await chat.conversation(owner)
    async with connect_stream(other_address, owner.token) as other:
        await other.next("connected")
        message = await deliver(other, web, "user", "to the other")
        before = await holder(chat, message)
        last = await chat.db.fetchval("select nextval('inbound_messages_delivery_seq')")  # as if delivered later
        async with connect_stream(address, owner.token, last) as second:
            await second.next("connected")
            assert await holder(chat, message) == before.replace("stream:", "parked:")
            await travel(timedelta(minutes=1))
            assert (await second.next_message())["id"] == message


@pytest.mark.parametrize("answered", [False, True])
async def test_a_reconnecting_client_takes_over_its_stale_streams_messages(
    web: httpx2.AsyncClient, address: str, other_address: str, chat: Chat, owner: Owner, *, answered: bool
) -> None:
    await chat.conversation(owner)
    async with connect_stream(other_address, owner.token) as first:
        await first.next("connected")
        messages = [await deliver(first, web, "user", text) for text in ("one", "two")]
        if answered:
            await web.post("/v1/messages/ack", json={"messageIds": messages[1:]}, headers=owner.header)
        before = await holder(chat, messages[0])
        async with connect_stream(address, owner.token, first.last) as second:
            await second.next("connected")
            second_holder = await holder(chat, messages[0])
            assert second_holder != before
            async with connect_stream(address, owner.token, first.last) as third:  # the second stream delivered nothing
                await third.next("connected")
                assert await holder(chat, messages[0]) not in {before, second_holder}
