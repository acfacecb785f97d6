"""Bots that poll: claim under a lease, then acknowledge, return or extend."""

import asyncio
from datetime import timedelta
from typing import Any

import httpx2
import pytest

from pabal.hub import Hub
from relay.bot import connect_stream
from relay.skills import send_message
from support.relay_rows import Chat, Owner
from support.wait import wait_until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def owner(chat: Chat) -> Owner:
    owner = await chat.owner()
    await chat.conversation(owner)
    return owner


async def fetch(
    web: httpx2.AsyncClient, owner: Owner, path: str = "/openclaw/messages", **query: Any
) -> dict[str, Any]:
    response = await web.get(path, params=query, headers=owner.header, timeout=40)
    assert response.status_code == 200, response.text
    return response.json()


async def settle(web: httpx2.AsyncClient, owner: Owner, action: str, **body: Any) -> dict[str, Any]:
    response = await web.post(f"/openclaw/messages/{action}", json=body, headers=owner.header)
    assert response.status_code == 200, response.text
    return response.json()


def texts(page: dict[str, Any]) -> list[str]:
    return [message["normalized"]["text"] for message in page["messages"]]


async def test_an_empty_queue_is_an_empty_list(web: httpx2.AsyncClient, owner: Owner) -> None:
    assert await fetch(web, owner) == {"messages": [], "cursor": None, "hasMore": False}


async def test_messages_are_returned_in_order_without_the_callback_url(web: httpx2.AsyncClient, owner: Owner) -> None:
    for text in ("one", "two", "three"):
        await send_message(web, text)

    page = await fetch(web, owner, limit=2)

    assert texts(page) == ["one", "two"]
    assert page["hasMore"] is True
    assert page["cursor"] == page["messages"][-1]["id"]
    message = page["messages"][0]
    assert message["payload"] == message["kakaoPayload"]
    assert "127.0.0.1:9/callback" not in str(message)
    assert message["callbackExpiresAt"] - message["timestamp"] == 55_000
    assert message["deliveryCount"] == 1
    assert message["createdAt"].endswith("Z")
    assert set(message) == {
        *("id", "conversationKey", "timestamp", "kakaoPayload", "payload", "normalized"),
        *("callbackExpiresAt", "deliveryCount", "createdAt"),
    }
    assert texts(await fetch(web, owner, path="/v1/messages")) == ["three"]


async def test_a_long_poll_gets_the_first_message_at_once_and_holds_no_connection(
    hub: Hub, web: httpx2.AsyncClient, owner: Owner
) -> None:
    polls = [asyncio.create_task(fetch(web, owner, wait=30)) for _ in range(3)]
    await wait_until(lambda: len(hub.relay.long_poll._waiters) == 1 and hub.db.connections_in_use() == 0)

    await send_message(web, "hello")
    done, pending = await asyncio.wait(polls, timeout=10, return_when=asyncio.FIRST_COMPLETED)

    assert [texts(task.result()) for task in done] == [["hello"]]
    for task in pending:
        task.cancel()


async def test_a_token_revoked_during_a_long_poll_gets_no_messages(
    hub: Hub, web: httpx2.AsyncClient, owner: Owner, chat: Chat
) -> None:
    poll = asyncio.create_task(web.get("/openclaw/messages", params={"wait": 30}, headers=owner.header, timeout=40))
    await wait_until(lambda: len(hub.relay.long_poll._waiters) == 1)
    await chat.db.execute("update accounts set relay_token_hash = default")

    await send_message(web, "hello")

    assert (await poll).status_code == 401
    await wait_until(lambda: hub.db.connections_in_use() == 0)
    assert await chat.db.fetchval("select status from inbound_messages") == "QUEUED"


@pytest.mark.parametrize("wait", [31, 99, 30_001, -1, "soon"])
async def test_a_wait_that_is_neither_seconds_nor_milliseconds_is_refused(
    web: httpx2.AsyncClient, owner: Owner, wait: Any
) -> None:
    response = await web.get("/openclaw/messages", params={"wait": wait}, headers=owner.header)

    assert response.status_code == 400
    assert "wait" in response.json()["message"]


@pytest.mark.parametrize("query", [{"limit": 0}, {"limit": 101}, {"lease": 4}, {"lease": 901}])
async def test_numbers_out_of_range_are_refused_with_the_field(
    web: httpx2.AsyncClient, owner: Owner, query: dict[str, int]
) -> None:
    response = await web.get("/openclaw/messages", params=query, headers=owner.header)

    assert response.status_code == 400
    assert next(iter(query)) in response.json()["message"]


async def test_an_unsettled_message_is_due_again_when_its_lease_ends(
    web: httpx2.AsyncClient, owner: Owner, chat: Chat, travel: Any
) -> None:
    await send_message(web, "hello")
    assert texts(await fetch(web, owner)) == ["hello"]
    assert texts(await fetch(web, owner)) == []

    await travel(timedelta(seconds=61))

    page = await fetch(web, owner)
    assert texts(page) == ["hello"]
    assert page["messages"][0]["deliveryCount"] == 2


async def test_ack_ends_nack_returns_and_extend_prolongs(web: httpx2.AsyncClient, owner: Owner, travel: Any) -> None:
    for text in ("one", "two", "three"):
        await send_message(web, text)
    first, second, third = (message["id"] for message in (await fetch(web, owner))["messages"])

    assert await settle(web, owner, "ack", messageIds=[first, first.upper(), "nonsense"]) == {
        "acknowledged": 1,
        "requested": 3,
    }
    assert await settle(web, owner, "nack", messageIds=[second]) == {"returned": 1, "requested": 1}
    assert await settle(web, owner, "extend", messageIds=[third], lease=600) == {"extended": 1, "requested": 1}
    await travel(timedelta(minutes=5))

    assert texts(await fetch(web, owner)) == ["two"]
    assert await settle(web, owner, "ack", messageIds=[first, third]) == {"acknowledged": 1, "requested": 2}


async def test_messages_of_another_account_cannot_be_settled(web: httpx2.AsyncClient, owner: Owner, chat: Chat) -> None:
    other = await chat.owner()
    await send_message(web, "private")
    [message] = (await fetch(web, owner))["messages"]

    assert texts(await fetch(web, other)) == []
    assert (await settle(web, other, "ack", messageIds=[message["id"]]))["acknowledged"] == 0
    assert (await settle(web, other, "nack", messageIds=[message["id"]]))["returned"] == 0
    assert (await settle(web, other, "extend", messageIds=[message["id"]]))["extended"] == 0
    assert await chat.db.fetchval("select status from inbound_messages") == "DELIVERED"


async def test_an_accounts_polls_are_limited_by_its_own_rate(web: httpx2.AsyncClient, chat: Chat) -> None:
    owner = await chat.owner(rate_limit_per_minute=3)

    responses = [await web.get("/openclaw/messages", headers=owner.header) for _ in range(5)]

    assert [response.status_code for response in responses] == [200, 200, 200, 429, 429]
    assert int(responses[-1].headers["retry-after"]) >= 1


async def test_a_poll_does_not_claim_messages_of_a_streams_conversation(
    web: httpx2.AsyncClient, owner: Owner, chat: Chat
) -> None:
    async with connect_stream(str(web.base_url), owner.token) as client:
        await client.next("connected")
        await send_message(web, "to the stream")
        await client.next_message()
        second = await chat.message(owner, "channel:user", None)  # without a notification
        page = await fetch(web, owner)

    assert page["messages"] == []
    assert (await chat.status(second))[0] in {"QUEUED", "DELIVERED"}


async def test_messages_of_an_offline_bot_expire_after_their_queue_life(
    hub: Hub, web: httpx2.AsyncClient, owner: Owner, chat: Chat, travel: Any
) -> None:
    await send_message(web, "hello")
    await travel(timedelta(minutes=16))

    assert texts(await fetch(web, owner)) == []
    await hub.chores.run_due()
    assert await chat.db.fetchval("select (status, reason)::text from inbound_messages") == "(EXPIRED,queue_life)"
