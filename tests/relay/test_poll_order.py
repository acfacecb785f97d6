"""Messages whose response to a poll was lost come back before newer ones of their conversation."""

import asyncio
from collections.abc import AsyncGenerator
from urllib.parse import urlsplit

import httpx2
import pytest

from pabal.api import relay_messages
from pabal.hub import Hub
from relay.skills import send_message
from relay.test_polling import fetch, settle, texts
from support.relay_rows import Chat, Owner
from support.server import serve_hub
from support.silent_hop import stop_acknowledging
from support.wait import wait_until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def owner(chat: Chat) -> Owner:
    owner = await chat.owner()
    await chat.conversation(owner)
    return owner


@pytest.fixture
async def web(hub: Hub) -> AsyncGenerator[httpx2.AsyncClient]:
    async with serve_hub(hub) as address, httpx2.AsyncClient(base_url=address, timeout=40) as client:
        yield client


async def start_poll(hub: Hub, web: httpx2.AsyncClient, owner: Owner) -> asyncio.StreamWriter:
    """A client that waits for messages and reads no response."""
    _, writer = await asyncio.open_connection("127.0.0.1", urlsplit(str(web.base_url)).port)
    lines = ["GET /openclaw/messages?wait=30 HTTP/1.1", "host: hub", f"authorization: Bearer {owner.token}", "", ""]
    writer.write("\r\n".join(lines).encode())
    await wait_until(lambda: len(hub.relay.long_poll._waiters) == 1)
    return writer


async def test_messages_of_a_response_that_is_not_acknowledged_return_in_order(
    hub: Hub, web: httpx2.AsyncClient, owner: Owner, chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_messages, "POLL_ACKNOWLEDGE_TIMEOUT", 0.2)
    writer = await start_poll(hub, web, owner)
    stop_acknowledging(writer.get_extra_info("socket"))

    await send_message(web, "lost")
    await wait_until(lambda: chat.db.fetchval("select count(*) = 1 from inbound_messages where delivery_count = 1"))
    await wait_until(lambda: chat.db.fetchval("select status = 'QUEUED' from inbound_messages"))
    await send_message(web, "next")

    page = await fetch(web, owner)
    assert texts(page) == ["lost", "next"]
    assert [message["deliveryCount"] for message in page["messages"]] == [2, 1]
    writer.close()


async def test_messages_of_a_response_that_arrived_stay_with_their_client(
    hub: Hub, web: httpx2.AsyncClient, owner: Owner
) -> None:
    await send_message(web, "hello")
    assert texts(await fetch(web, owner)) == ["hello"]
    await wait_until(lambda: not hub.relay.long_poll._watch_tasks)

    await send_message(web, "next")  # the client has not answered yet, and fetches again

    assert texts(await fetch(web, owner)) == ["next"]


async def test_a_client_that_names_what_it_received_gets_the_rest_again_in_order(
    web: httpx2.AsyncClient, owner: Owner
) -> None:
    await send_message(web, "received")
    received = (await fetch(web, owner))["cursor"]
    await send_message(web, "lost")
    await fetch(web, owner)
    await send_message(web, "next")

    assert texts(await fetch(web, owner, received=received)) == ["lost", "next"]


async def test_what_a_client_received_is_not_sent_again(web: httpx2.AsyncClient, owner: Owner) -> None:
    for text in ("one", "two", "three"):
        await send_message(web, text)
    first, _ = (await fetch(web, owner, limit=2))["messages"]
    [third] = (await fetch(web, owner))["messages"]

    assert texts(await fetch(web, owner, received=third["id"])) == []
    await settle(web, owner, "ack", messageIds=[third["id"]])
    assert texts(await fetch(web, owner, received=first["id"])) == ["two"]


async def test_messages_of_another_token_stay_with_it(web: httpx2.AsyncClient, owner: Owner, chat: Chat) -> None:
    other = Owner(owner.id, await chat.session(owner.id))
    await send_message(web, "ours")
    received = (await fetch(web, owner))["cursor"]
    await send_message(web, "theirs")
    await fetch(web, other)

    assert texts(await fetch(web, owner, received=received)) == []


async def test_a_message_of_another_account_returns_nothing(web: httpx2.AsyncClient, owner: Owner, chat: Chat) -> None:
    other = await chat.owner()
    await chat.conversation(other, "another")
    await send_message(web, "theirs", "another")
    theirs = (await fetch(web, other))["cursor"]
    await send_message(web, "ours")
    await fetch(web, owner)

    assert texts(await fetch(web, owner, received=theirs)) == []


async def test_what_a_client_received_must_be_an_id(web: httpx2.AsyncClient, owner: Owner) -> None:
    response = await web.get("/openclaw/messages", params={"received": "last"}, headers=owner.header)

    assert response.status_code == 400
    assert "received" in response.json()["message"]
