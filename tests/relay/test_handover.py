"""Handover: the statement that stores a message leases it to the open stream. No race loses or reorders a message."""

import asyncio
import signal
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx2
import pytest

from pabal.db.doorbell.channels import Channel
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.relay.delivery import stream
from pabal.settings import Settings
from relay.bot import StreamClient, connect_stream
from relay.skills import USE_CALLBACK, post_webhook, send_message, skill_payload
from support.clusters import open_connection
from support.fault_proxy import run_fault_proxy
from support.pabal_process import RunningHub, fresh_folder
from support.relay_rows import Chat, Owner
from support.server import serve_hub
from support.wait import COUNT_LOCK_WAITS, wait_until
from support.webhook import WEBHOOK_SECRET

pytestmark = pytest.mark.anyio

COUNT_BY_STATUS = "select count(*) from inbound_messages where status = $1"

IS_SECOND_STORED = "select exists (select from inbound_messages where normalized ->> 'text' = 'second')"

WAIT_AT_GATE = """
create function public.wait_at_gate() returns boolean language plpgsql volatile as
$$ begin perform pg_advisory_xact_lock_shared(4711); return true; end $$;
create function public.wait_in_trigger() returns trigger language plpgsql volatile as
$$ begin perform pg_advisory_xact_lock_shared(4711); return null; end $$;
"""


@pytest.fixture
async def address(hub: Hub) -> AsyncGenerator[str]:
    async with serve_hub(hub) as url:
        yield url


@pytest.fixture
async def web(address: str) -> AsyncGenerator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=address, timeout=30) as client:
        yield client


@pytest.fixture
async def owner(chat: Chat) -> Owner:
    owner = await chat.owner()
    await chat.conversation(owner)
    return owner


@pytest.fixture
async def second_connection(database_urls: DatabaseUrls) -> AsyncGenerator[Any]:
    assert database_urls.direct
    async with open_connection(database_urls.direct) as connection:
        yield connection


@asynccontextmanager
async def warm_stream(address: str, web: httpx2.AsyncClient, chat: Chat, token: str) -> AsyncGenerator[StreamClient]:
    """A stream that was handed its last message: the claims of its beginning have ended."""
    async with connect_stream(address, token) as client:
        await client.next("connected")
        while not client.messages() or await is_last_claimed(chat):
            await send_message(web, "first")
            await client.next_message()
        yield client


async def is_last_claimed(chat: Chat) -> bool:
    """Whether the last message was delivered by another statement than the one that stored it."""
    return await chat.db.fetchval("select delivered_at > created_at from inbound_messages order by seq desc limit 1")


@asynccontextmanager
async def delayed_webhook(chat: Chat, web: httpx2.AsyncClient, text: str) -> AsyncGenerator[None]:
    """A webhook whose statement has chosen the stream, and waits for a lock until the end of the block."""
    async with chat.db.transaction():
        await chat.db.execute("select from accounts for no key update")
        task = asyncio.create_task(send_message(web, text))
        await wait_until(lambda: chat.db.fetchval(f"select ({COUNT_LOCK_WAITS}) > 0"))
        yield
    await task


async def test_a_message_handed_over_looks_like_a_claimed_one(
    web: httpx2.AsyncClient, address: str, chat: Chat, owner: Owner
) -> None:
    payload = skill_payload("hello") | {"extra": {"large": 12345678901234567890123, "exponent": 1e2, "text": "é😀\\"}}
    await post_webhook(web, payload)
    async with warm_stream(address, web, chat, owner.token) as client:
        claimed = next(event for event in client.received if event.name == "message")
        handed_over, number = claimed, 0
        while handed_over is claimed or await is_last_claimed(chat):  # during a claim nothing is handed over
            number += 1
            request = payload["userRequest"] | {"eventId": str(number)}
            await post_webhook(web, payload | {"userRequest": request})
            while handed_over.data["kakaoPayload"]["userRequest"].get("eventId") != str(number):
                handed_over = await client.next("message")
        rows = await chat.db.fetch("select * from inbound_messages order by seq")

    variable = {"id", "createdAt", "callbackExpiresAt", "kakaoPayload"}
    assert {name: handed_over.data[name] for name in handed_over.data.keys() - variable} == {
        name: claimed.data[name] for name in claimed.data.keys() - variable
    }
    assert handed_over.data["kakaoPayload"]["extra"] == claimed.data["kakaoPayload"]["extra"]
    assert "callbackUrl" not in handed_over.data["kakaoPayload"]["userRequest"]
    assert handed_over.id > claimed.id
    for name in ("status", "held_by", "delivery_count"):
        assert rows[0][name] == rows[-1][name], name
    assert rows[-1]["delivery_seq"] == handed_over.id


async def test_a_stream_that_closes_meanwhile_gives_the_message_back(
    hub: Hub, web: httpx2.AsyncClient, address: str, chat: Chat, owner: Owner
) -> None:
    async with warm_stream(address, web, chat, owner.token) as client:
        async with delayed_webhook(chat, web, "second"):
            client.disconnect()
            await wait_until(lambda: len(hub.relay.stream_registry) == 0)
        last = client.last
    async with connect_stream(address, owner.token, last) as client:
        assert (await client.next_message())["normalized"]["text"] == "second"


async def test_a_stream_that_is_taken_over_meanwhile_gets_nothing(
    hub: Hub, web: httpx2.AsyncClient, address: str, chat: Chat, owner: Owner
) -> None:
    async with AsyncExitStack() as stack:
        old = await stack.enter_async_context(warm_stream(address, web, chat, owner.token))
        async with delayed_webhook(chat, web, "second"):
            new = await stack.enter_async_context(connect_stream(address, owner.token, old.last))
            await new.next("connected")
        assert (await new.next_message())["normalized"]["text"] == "second"
        await send_message(web, "third")
        assert (await new.next_message())["normalized"]["text"] == "third"
        assert {*old.messages()} == {"first"}


async def test_a_stream_that_another_process_takes_over_meanwhile_gives_the_message_back(
    hub: Hub,
    web: httpx2.AsyncClient,
    address: str,
    chat: Chat,
    owner: Owner,
    database_urls: DatabaseUrls,
    settings: Settings,
) -> None:
    async with (
        open_hub(settings, database_urls) as other_hub,
        serve_hub(other_hub) as other_address,
        warm_stream(address, web, chat, owner.token) as old,
        AsyncExitStack() as stack,
    ):
        async with delayed_webhook(chat, web, "second"):
            new = await stack.enter_async_context(connect_stream(other_address, owner.token, old.last))
            await new.next("connected")
        assert (await new.next_message())["normalized"]["text"] == "second"


async def test_a_parked_stream_is_handed_nothing_before_its_process_knows(
    web: httpx2.AsyncClient, address: str, chat: Chat, owner: Owner
) -> None:
    """The message is queued, and claimed by a later statement."""
    async with warm_stream(address, web, chat, owner.token) as client:
        await chat.db.execute("update relay_streams set parked_at = pabal.now()")
        await send_message(web, "second")
        await client.next_message()
    assert await is_last_claimed(chat)


async def test_a_process_killed_after_the_commit_loses_no_message(
    hub: Hub, address: str, chat: Chat, owner: Owner, database_urls: DatabaseUrls
) -> None:
    """The message is leased to a stream that never sent it. Its client gets it with the next connection."""
    assert database_urls.direct
    async with run_fault_proxy(database_urls.main) as (proxy, url):
        with fresh_folder() as folder:
            variables = {
                "PABAL_DATABASE_URL": url,
                "PABAL_DATABASE_DIRECT_URL": database_urls.direct,
                "PABAL_WEBHOOK_SECRET": WEBHOOK_SECRET.get_secret_value(),
            }
            killed = await asyncio.to_thread(lambda: RunningHub(folder, "serve", **variables))
            try:
                async with httpx2.AsyncClient(base_url=killed.address, timeout=30) as web:
                    async with warm_stream(killed.address, web, chat, owner.token) as client:
                        async with chat.db.transaction():
                            await chat.db.execute("select from accounts for no key update")
                            task = asyncio.create_task(send_message(web, "second"))
                            await wait_until(lambda: chat.db.fetchval(f"select ({COUNT_LOCK_WAITS}) > 0"))
                            proxy.drop_bytes()
                        await wait_until(lambda: chat.db.fetchval(IS_SECOND_STORED))
                        killed.end(signal.SIGKILL)
                        assert await client.read() is None  # nothing was sent
                        last = client.last
                    with pytest.raises(httpx2.HTTPError):
                        await task
            finally:
                killed.end(signal.SIGKILL)
                assert killed.process.stdout
                killed.process.stdout.close()
    async with connect_stream(address, owner.token, last) as client:
        assert (await client.next_message())["normalized"]["text"] == "second"


async def test_a_stream_is_handed_no_more_than_it_has_room_for(
    web: httpx2.AsyncClient, address: str, chat: Chat, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "MAX_MESSAGES_IN_FLIGHT", 3)
    users = [f"user-{number}" for number in range(6)]
    for user in users:
        await chat.conversation(owner, user)
    async with connect_stream(address, owner.token) as client:
        await client.next("connected")
        for user in users:  # the hub gets to know the conversations
            await send_message(web, "first", user)
            await answer(web, owner, await client.next_message())
        assert [*await asyncio.gather(*(send_message(web, "second", user) for user in users))] == [USE_CALLBACK] * 6
        assert await chat.db.fetchval(COUNT_BY_STATUS, "QUEUED") == 3
        for _ in users:
            await answer(web, owner, await client.next_message())
        ids = [event.id for event in client.received]
    assert ids == sorted(ids)
    assert await chat.db.fetchval(COUNT_BY_STATUS, "ACKED") == 12


async def answer(web: httpx2.AsyncClient, owner: Owner, message: dict[str, Any]) -> None:
    """Acknowledge a message, which frees its slot."""
    response = await web.post("/v1/messages/ack", json={"messageIds": [message["id"]]}, headers=owner.header)
    assert response.status_code == 200, response.text


async def test_a_message_is_not_handed_over_before_an_earlier_one_of_its_conversation(
    web: httpx2.AsyncClient, address: str, chat: Chat, owner: Owner, second_connection: Any
) -> None:
    """Another process stores the earlier one between the snapshot of the later one's statement and its row lock."""
    async with warm_stream(address, web, chat, owner.token) as client:
        await chat.db.execute(WAIT_AT_GATE)
        await chat.db.execute(
            "alter policy conversation_mappings_service_role_all on conversation_mappings using (public.wait_at_gate())"
        )
        async with second_connection.transaction():
            await second_connection.execute("select pg_advisory_xact_lock(4711)")
            task = asyncio.create_task(send_message(web, "third"))
            await wait_until(lambda: chat.db.fetchval(f"select ({COUNT_LOCK_WAITS}) > 0"))
            async with chat.db.transaction():
                await chat.db.execute("update conversation_mappings set last_seen_at = pabal.now()")
                earlier = await chat.message(owner, "channel:user", None)
        await task
        delivered = [(await client.next_message())["id"] for _ in range(2)]
    assert delivered[0] == str(earlier)


async def test_a_message_is_not_handed_over_before_a_queued_one(
    web: httpx2.AsyncClient, address: str, chat: Chat, owner: Owner
) -> None:
    async with warm_stream(address, web, chat, owner.token) as client:
        earlier = await chat.message(owner, "channel:user", None)  # without a notification
        await send_message(web, "second")
        assert (await client.next_message())["id"] == str(earlier)
        assert (await client.next_message())["normalized"]["text"] == "second"


async def test_nothing_is_claimed_for_a_stream_while_a_message_is_handed_to_it(
    hub: Hub, web: httpx2.AsyncClient, address: str, chat: Chat, owner: Owner, second_connection: Any
) -> None:
    """The claim would send its larger number first. A client that reconnects with that number never gets the other."""
    await chat.conversation(owner, "other")
    async with warm_stream(address, web, chat, owner.token) as client:
        await chat.db.execute(WAIT_AT_GATE)
        await chat.db.execute(
            """
            create trigger gate after insert on inbound_messages for each row when (new.status = 'DELIVERED')
            execute function public.wait_in_trigger()
            """
        )
        async with second_connection.transaction():
            await second_connection.execute("select pg_advisory_xact_lock(4711)")
            handed_over = asyncio.create_task(send_message(web, "handed over"))
            await wait_until(lambda: chat.db.fetchval(f"select ({COUNT_LOCK_WAITS}) > 0"))  # it has its number
            await chat.message(owner, "channel:other", None)
            async with hub.transaction() as tx:
                tx.notify(Channel.MESSAGES, str(owner.id))
            claimed = asyncio.create_task(client.next("message"))
            waiters = [stream.waiter for stream in hub.relay.stream_registry]
            await wait_until(lambda: claimed.done() or any(waiter.was_skipped for waiter in waiters))
        await handed_over
        await claimed
        await client.next("message")
        ids = [event.id for event in client.received]
    assert ids == sorted(ids)


async def test_ids_ascend_and_conversations_stay_in_order_while_two_processes_store(
    hub: Hub,
    web: httpx2.AsyncClient,
    address: str,
    chat: Chat,
    owner: Owner,
    database_urls: DatabaseUrls,
    settings: Settings,
) -> None:
    """Handovers of one process race with claims for what the other process queued."""
    users, rounds = [f"user-{number}" for number in range(5)], 12
    for user in users:
        await chat.conversation(owner, user)
    async with (
        open_hub(settings, database_urls) as other_hub,
        serve_hub(other_hub) as other_address,
        httpx2.AsyncClient(base_url=other_address, timeout=30) as other_web,
        connect_stream(address, owner.token) as client,
    ):
        await client.next("connected")

        async def talk(number: int, user: str) -> None:
            for index in range(rounds):
                await send_message(web if (index + number) % 5 else other_web, f"{index}", user)

        talks = asyncio.gather(*(talk(number, user) for number, user in enumerate(users)))
        events = [await client.next("message") for _ in range(len(users) * rounds)]
        await talks
    ids = [event.id for event in events]
    assert ids == sorted({*ids})
    for user in users:
        own = [event.data["normalized"]["text"] for event in events if event.data["normalized"]["userId"] == user]
        assert own == [str(index) for index in range(rounds)]
