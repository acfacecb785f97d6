"""Takeover: one token is one client, and its newest stream gets the messages, whatever became of the older ones."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import httpx2
import pytest

from pabal.api import relay_stream
from pabal.core.ids import new_id
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.relay.auth import hash_relay_secret
from pabal.relay.delivery import stream_registry
from pabal.relay.delivery.control_events import ControlEventKind, send_control_event
from pabal.relay.delivery.stream import RelayStream, StreamFrame
from pabal.relay.delivery.takeover import register_stream
from pabal.web.server import connection
from relay.bot import StreamClient, connect_stream
from relay.marker import events_before_marker
from relay.skills import send_message
from support.relay_rows import Chat, Owner
from support.server import serve_hub
from support.silent_hop import SilentHop, silent_hop
from support.wait import wait_until

pytestmark = pytest.mark.anyio

MINUTE = timedelta(minutes=1)


@pytest.fixture
async def owner(chat: Chat) -> Owner:
    owner = await chat.owner()
    await chat.conversation(owner)
    return owner


@pytest.fixture
async def token(chat: Chat, owner: Owner) -> str:
    """The token of a plugin: a paired session."""
    return await chat.session(owner.id)


@pytest.fixture
async def address(hub: Hub) -> AsyncGenerator[str]:
    async with serve_hub(hub) as url:
        yield url


@pytest.fixture(params=["same process", "another process"])
async def second_address(
    request: pytest.FixtureRequest, hub: Hub, address: str, database_urls: DatabaseUrls
) -> AsyncGenerator[str]:
    """Where the client reconnects."""
    if request.param == "same process":
        yield address
        return
    async with open_hub(hub.settings, database_urls) as other_hub, serve_hub(other_hub) as url:
        await wait_until(lambda: other_hub.doorbell.listening and hub.doorbell.listening)
        yield url


@pytest.fixture
async def hop(address: str) -> AsyncGenerator[SilentHop]:
    async with silent_hop(address) as hop:
        yield hop


@pytest.fixture
async def web(address: str) -> AsyncGenerator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=address) as client:
        yield client


async def write_delivered(web: httpx2.AsyncClient, chat: Chat, *texts: str) -> None:
    """Write to a stream that does not answer, and wait until the hub has sent everything."""
    for text in texts:
        await send_message(web, text)
    await wait_until(lambda: chat.db.fetchval("select count(*) = 0 from inbound_messages where status = 'QUEUED'"))


async def read_texts(client: StreamClient, count: int) -> list[str]:
    return [(await client.next_message())["normalized"]["text"] for _ in range(count)]


@pytest.mark.parametrize("resumes", ["with its last id", "with the id of connected", "without an id"])
async def test_a_client_that_vanished_gets_every_message_when_it_reconnects(
    web: httpx2.AsyncClient, second_address: str, hop: SilentHop, chat: Chat, owner: Owner, token: str, resumes: str
) -> None:
    async with connect_stream(hop.address, token) as first:
        last: int | None = (await first.next("connected")).id
        received: list[str] = []
        if resumes == "with its last id":
            await send_message(web, "received")
            last = (await first.next("message")).id
            received = ["received"]
        elif resumes == "without an id":
            last = None
        hop.swallow()
        await write_delivered(web, chat, "one", "two", "three")
        async with connect_stream(second_address, token, last) as second:
            assert second.status == 200
            assert await read_texts(second, 3) == ["one", "two", "three"]
            later = [f"later {number}" for number in range(8)]
            for text in later:
                await send_message(web, text)
            assert await read_texts(second, 8) == later
        assert first.messages() == received
        assert hop.swallowed_bytes > 0


async def test_a_restarted_client_gets_what_its_former_self_received(
    web: httpx2.AsyncClient, second_address: str, hop: SilentHop, owner: Owner, token: str
) -> None:
    async with connect_stream(hop.address, token) as first:
        await first.next("connected")
        await send_message(web, "thinking about it")
        await first.next_message()
        hop.swallow()
        async with connect_stream(second_address, token) as restarted:
            message = await restarted.next_message()
    assert message["normalized"]["text"] == "thinking about it"
    assert message["deliveryCount"] == 2


async def test_lost_messages_come_back_to_the_same_token(
    web: httpx2.AsyncClient, address: str, hop: SilentHop, chat: Chat, hub: Hub, owner: Owner, token: str
) -> None:
    async with connect_stream(hop.address, token) as first:
        await first.next("connected")
        hop.swallow()
        await write_delivered(web, chat, "one", "two")
        async with connect_stream(address, owner.token) as other:
            await other.next("connected")
            async with connect_stream(address, token, 0) as second:
                assert await read_texts(second, 2) == ["one", "two"]
                await events_before_marker(hub, web, chat, owner, other, second)
    assert {"one", "two"}.isdisjoint(other.messages())


async def test_dead_streams_never_cause_a_429_and_the_oldest_are_reset(
    web: httpx2.AsyncClient, second_address: str, chat: Chat, owner: Owner, token: str
) -> None:
    async with AsyncExitStack() as stack:
        streams: list[StreamClient] = []
        for _ in range(8):
            streams.append(await stack.enter_async_context(connect_stream(second_address, token)))
            await streams[-1].next("connected")
        assert [client.status for client in streams] == [200] * 8
        assert [await client.is_reset() for client in streams[:2]] == [True, True]
        await send_message(web, "hello")
        assert await read_texts(streams[-1], 1) == ["hello"]
        rows = "select count(*) filter (where parked_at is null), count(*) from relay_streams"
        assert tuple(await chat.db.fetchrow(rows) or ()) == (1, 6)


async def test_two_live_clients_on_one_token_do_not_evict_each_other(
    web: httpx2.AsyncClient, address: str, second_address: str, hub: Hub, chat: Chat, owner: Owner, token: str
) -> None:
    async with connect_stream(address, token) as first:
        await first.next("connected")
        async with connect_stream(second_address, token) as second:
            await second.next("connected")
            for number in range(5):
                await send_message(web, f"text {number}")
            assert await read_texts(second, 5) == [f"text {number}" for number in range(5)]
            assert await events_before_marker(hub, web, chat, owner, first, second) == []
            assert len(await chat.db.fetch("select from relay_streams")) == 2
        assert first.messages() == []
        await wait_until(lambda: chat.db.fetchval("select count(*) = 1 from relay_streams where parked_at is null"))
        await chat.conversation(owner, "new user")
        await send_message(web, "the first is active again", "new user")
        assert await read_texts(first, 1) == ["the first is active again"]


async def test_a_parked_stream_is_pinged(address: str, token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_stream, "RELAY_PING_INTERVAL", timedelta(milliseconds=20))
    async with connect_stream(address, token) as parked, connect_stream(address, token) as active:
        await parked.next("connected")
        await active.next("connected")
        reading = asyncio.create_task(parked.read())
        await wait_until(lambda: parked.pings >= 3)
        reading.cancel()


async def test_a_stream_has_the_socket_options_that_detect_a_dead_client(address: str, hub: Hub, token: str) -> None:
    async with connect_stream(address, token) as client:
        await client.next("connected")
        [stream] = hub.relay.stream_registry
        reset: Any = stream.reset_connection  # with the server's side of the connection
        accepted = reset.args[0].get_extra_info("socket")

        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        options = ("TCP_USER_TIMEOUT", "TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")
        values = [accepted.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in options]
        assert values == [20_000, 10, 5, 3]


async def test_a_client_that_is_active_again_does_not_get_what_it_has(
    web: httpx2.AsyncClient, address: str, chat: Chat, hub: Hub, owner: Owner, token: str, travel: Any
) -> None:
    async with connect_stream(address, token) as first:
        await first.next("connected")
        await send_message(web, "thinking about it")
        await first.next_message()
        last = await chat.db.fetchval("select nextval('inbound_messages_delivery_seq')")
        async with connect_stream(
            address, token, last
        ) as second:  # another client: it does not know the first one's ids
            await second.next("connected")
        held = "select count(*) = 1 from inbound_messages where held_by like 'stream:%'"
        await wait_until(lambda: chat.db.fetchval(held))
        await travel(MINUTE)
        assert await events_before_marker(hub, web, chat, owner, first) == []


async def test_a_message_claimed_for_a_stream_that_was_just_parked_goes_to_the_active_one(
    address: str, chat: Chat, hub: Hub, owner: Owner, token: str
) -> None:
    """A claim that began before the takeover commits after it, before the process reads the control event."""
    async with connect_stream(address, token) as first, connect_stream(address, token) as second:
        await first.next("connected")
        await second.next("connected")
        parked = await chat.db.fetchrow("select id, token_id from relay_streams where parked_at is not null")
        assert parked
        await chat.db.execute(
            """
            insert into inbound_messages (account_id, conversation_key, kakao_payload, normalized, source_event_id,
                                          status, held_by, lease, leased_until, delivered_at, delivery_count)
            values ($1, 'channel:user', '{}', '{"text": "late"}', 'late',
                    'DELIVERED', $2, gen_random_uuid(), pabal.now() + interval '30 s', pabal.now(), 1)
            """,
            owner.id,
            f"stream:{parked['token_id']}:{parked['id']}",
        )
        async with hub.transaction() as tx:
            await send_control_event(
                tx, ControlEventKind.PARKED, account=owner.id, streams=[str(parked["id"])], reset=[]
            )
        assert await read_texts(second, 1) == ["late"]


async def test_a_parked_stream_replaces_an_active_one_whose_process_died(
    web: httpx2.AsyncClient,
    address: str,
    chat: Chat,
    hub: Hub,
    owner: Owner,
    token: str,
    travel: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream_registry, "FULL_STREAM_CHECK_INTERVAL", 0.02)
    monkeypatch.setattr(stream_registry, "KEEPALIVE_INTERVAL", timedelta())
    async with connect_stream(address, token) as client:
        await client.next("connected")
        async with hub.transaction() as tx:  # another process opens a stream and dies
            await register_stream(tx, new_id(), hash_relay_secret(token), None)
        await wait_until(lambda: chat.db.fetchval("select count(*) = 1 from relay_streams where parked_at is not null"))
        await travel(MINUTE)
        await send_message(web, "hello")
        assert await read_texts(client, 1) == ["hello"]


async def test_a_stream_whose_row_is_gone_is_reset(
    address: str, chat: Chat, owner: Owner, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process could not reach the database for minutes: no new stream would know what to take over from."""
    monkeypatch.setattr(stream_registry, "FULL_STREAM_CHECK_INTERVAL", 0.02)
    monkeypatch.setattr(stream_registry, "KEEPALIVE_INTERVAL", timedelta())
    async with connect_stream(address, token) as client:
        await client.next("connected")
        await chat.db.execute("delete from relay_streams")
        async with asyncio.timeout(10):
            assert await client.is_reset()


@pytest.mark.parametrize("sent", ["a ping", "a message"])
async def test_bytes_that_stay_unacknowledged_end_the_stream(
    web: httpx2.AsyncClient,
    address: str,
    hub: Hub,
    owner: Owner,
    token: str,
    monkeypatch: pytest.MonkeyPatch,
    sent: str,
) -> None:
    monkeypatch.setattr(connection, "UNACKNOWLEDGED_TIMEOUT", timedelta(milliseconds=200))
    if sent == "a ping":
        monkeypatch.setattr(relay_stream, "RELAY_PING_INTERVAL", timedelta(milliseconds=50))
    async with connect_stream(address, token) as client:
        await client.next("connected")
        client.vanish()
        if sent == "a message":
            await send_message(web, "hello")
        await wait_until(lambda: len(hub.relay.stream_registry) == 0)


async def test_a_message_moves_to_another_token_only_after_its_stream_is_gone(
    web: httpx2.AsyncClient,
    address: str,
    chat: Chat,
    hub: Hub,
    owner: Owner,
    token: str,
    travel: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "UNACKNOWLEDGED_TIMEOUT", timedelta(milliseconds=200))
    monkeypatch.setattr(relay_stream, "RELAY_PING_INTERVAL", timedelta(milliseconds=200))  # one is unacknowledged too
    async with connect_stream(address, token) as first:
        await first.next("connected")
        await send_message(web, "think")
        await first.next_message()
        async with connect_stream(address, owner.token) as other:
            await other.next("connected")
            await travel(5 * MINUTE)
            assert await events_before_marker(hub, web, chat, owner, first, other) == []
            first.vanish()
            await send_message(web, "to the dead stream")  # its conversation belongs to that stream
            await wait_until(lambda: len(hub.relay.stream_registry) == 1)
            await hub.relay.stream_registry.drain()
            await travel(MINUTE)
            while not {"think", "to the dead stream"} <= {*other.messages()}:
                await other.next("message")


async def test_a_stream_that_does_not_drain_has_no_room() -> None:
    stream = RelayStream(new_id(), new_id(), None, new_id(), None)
    drained: list[bool] = []
    stream.on_drained = lambda: drained.append(True)
    stream.enqueue_frame(StreamFrame("message", {}))
    stream.enqueue_frame(StreamFrame("message", {}))
    frames = stream.frames(MINUTE)

    await anext(frames)  # the first frame waits until the connection takes it
    assert stream.waiter.free_slots == 0
    stream.remove_in_flight([new_id()])
    assert stream.waiter.free_slots == 0
    await anext(frames)
    assert not drained
    stream.waiter.was_skipped = True  # the long poll had messages for it
    stream.close()
    await anext(frames)
    assert drained == [True]
    with pytest.raises(StopAsyncIteration):
        await anext(frames)
    assert stream.waiter.free_slots > 0
    assert drained == [True]


async def test_messages_go_to_a_client_that_reads(
    web: httpx2.AsyncClient, address: str, chat: Chat, owner: Owner, token: str
) -> None:
    users = [f"user {number}" for number in range(40)]
    for user in users:
        await chat.conversation(owner, user)
    async with connect_stream(address, token) as stuck:  # reads nothing
        for user in users:
            await send_message(web, "hello", user, padding="x" * 800_000)
        async with connect_stream(address, owner.token) as reading:
            await reading.next("connected")
            assert await read_texts(reading, 1) == ["hello"]
        assert stuck.messages() == []
