"""Takeover races: a stream closes, opens or loses its client while another step of the same token is under way."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from datetime import timedelta
from uuid import UUID

import httpx2
import pytest

from pabal.core.ids import new_id
from pabal.hub import Hub
from pabal.relay.auth import hash_relay_secret
from pabal.relay.delivery import stream_registry
from pabal.relay.delivery.control_events import ControlEventKind, send_control_event
from pabal.relay.delivery.takeover import activate_parked_streams, register_stream
from pabal.web.server.server import WebServer
from relay.bot import StreamClient, connect_stream
from relay.marker import mark
from relay.skills import send_message
from support.relay_rows import Chat, Owner
from support.server import running_web_server
from support.wait import COUNT_LOCK_WAITS, wait_for_lock_of, wait_until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def owner(chat: Chat) -> Owner:
    owner = await chat.owner()
    await chat.conversation(owner)
    return owner


@pytest.fixture
async def token(chat: Chat, owner: Owner) -> str:
    return await chat.session(owner.id)


@pytest.fixture
async def served(hub: Hub) -> AsyncGenerator[tuple[str, WebServer]]:
    async with running_web_server(hub) as pair:
        yield pair


async def test_a_client_that_disconnects_while_its_stream_opens_leaves_no_stream(
    hub: Hub, served: tuple[str, WebServer], chat: Chat, owner: Owner, token: str
) -> None:
    """A stream without a client would get messages that no client reads."""
    address, server = served
    async with chat.db.transaction():
        await chat.db.execute("lock table relay_streams in exclusive mode")
        _, writer = await asyncio.open_connection("127.0.0.1", int(address.rpartition(":")[2]))
        writer.write(f"GET /v1/events HTTP/1.1\r\nhost: hub\r\nauthorization: Bearer {token}\r\n\r\n".encode())
        await wait_until(lambda: chat.db.fetchval("select count(*) > 0 from pg_locks where not granted"))
        writer.transport.abort()
        await wait_until(lambda: len(server.table) == 0)
    await wait_until(lambda: not server.server_state.tasks)
    assert len(hub.relay.stream_registry) == 0
    assert await chat.db.fetchval("select count(*) from relay_streams") == 0


async def test_a_stream_that_closes_and_one_that_takes_over_cannot_deadlock(
    served: tuple[str, WebServer], chat: Chat, owner: Owner, token: str
) -> None:
    """Both lock the rows of the streams before those of the messages."""
    address, _ = served
    async with httpx2.AsyncClient(base_url=address) as web, connect_stream(address, token) as client:
        await client.next("connected")
        await send_message(web, "hello")
        await client.next_message()
        async with chat.db.transaction():  # what the takeover does first
            await chat.db.execute("update relay_streams set parked_at = pabal.now()")
            client.disconnect()
            await wait_until(lambda: chat.db.fetchval(f"select ({COUNT_LOCK_WAITS}) > 0"))
            await chat.db.execute("select from inbound_messages for no key update nowait")


async def test_a_stream_that_closes_while_it_is_activated_gets_no_more_messages(
    hub: Hub, served: tuple[str, WebServer], chat: Chat, owner: Owner, token: str
) -> None:
    address, _ = served
    neighbour = await chat.owner()
    async with connect_stream(address, neighbour.token) as other:  # keeps the control events coming
        await other.next("connected")
        async with connect_stream(address, token) as first, connect_stream(address, token) as second:
            await first.next("connected")
            await second.next("connected")
            await first.until(await mark(hub, owner.id))  # the control event of the takeover is applied
            async with chat.db.transaction():
                await chat.db.execute("lock table inbound_messages in exclusive mode")
                parked = await chat.db.fetchval("select id from relay_streams where parked_at is not null")
                async with hub.transaction() as tx:
                    await send_control_event(tx, ControlEventKind.ACTIVATED, account=owner.id, streams=[str(parked)])
                await wait_until(lambda: chat.db.fetchval(f"select ({COUNT_LOCK_WAITS}) > 0"))
                first.disconnect()
                second.disconnect()
                await wait_until(lambda: len(hub.relay.stream_registry) == 1)
        await other.until(await mark(hub, neighbour.id))
        await expect_delivery(address, owner)


async def test_a_stream_that_closes_while_it_is_paired_is_not_opened_again(
    hub: Hub, served: tuple[str, WebServer], chat: Chat, owner: Owner
) -> None:
    address, _ = served
    token = await chat.session(None, paired=False)
    neighbour = await chat.owner()
    async with connect_stream(address, neighbour.token) as other, connect_stream(address, token) as waiting:
        await other.next("connected")
        session = (await waiting.next("connected")).data["sessionId"]
        async with chat.db.transaction():
            await chat.db.execute("select from relay_streams for update")
            async with hub.transaction() as tx:
                await send_control_event(tx, ControlEventKind.PAIRED, account=owner.id, session=UUID(session))
            await wait_until(lambda: chat.db.fetchval(f"select ({COUNT_LOCK_WAITS}) > 0"))
            waiting.disconnect()
            await wait_until(lambda: len(hub.relay.stream_registry) == 1)
        await other.until(await mark(hub, neighbour.id))
        assert len(hub.relay.stream_registry) == 1


async def test_a_stream_that_was_started_twice_gets_no_more_messages_after_it_closed(
    hub: Hub, served: tuple[str, WebServer], chat: Chat, owner: Owner, token: str
) -> None:
    """A stream that is parked and activated before its response begins is started by both."""
    registry = hub.relay.stream_registry
    stream, _ = await registry.open(token, None)
    registry.start(stream)
    registry.start(stream)
    await registry.close(stream)
    await expect_delivery(served[0], owner)


async def expect_delivery(address: str, owner: Owner) -> None:
    """A message that no stream waits for stays queued until a client connects."""
    async with httpx2.AsyncClient(base_url=address) as web:
        await send_message(web, "hello")
        async with connect_stream(address, owner.token) as client:
            assert (await client.next_message())["normalized"]["text"] == "hello"


async def test_an_activated_stream_counts_against_the_limit_of_its_account(
    hub: Hub, served: tuple[str, WebServer], chat: Chat, owner: Owner, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process of a token's active stream dies, and other tokens connect before its parked stream is activated."""
    monkeypatch.setattr(stream_registry, "KEEPALIVE_INTERVAL", timedelta(hours=1))
    address, _ = served
    active = "select count(*) from relay_streams where parked_at is null"
    async with connect_stream(address, token) as parked, AsyncExitStack() as stack:
        await parked.next("connected")
        async with hub.transaction() as tx:
            opening = await register_stream(tx, new_id(), hash_relay_secret(token), None)
        await chat.db.execute("delete from relay_streams where id = $1", opening.stream.id)
        token_id = opening.stream.token_id

        async def activate() -> None:
            async with hub.transaction() as tx:
                await activate_parked_streams(tx, [token_id])

        async def connect(other_token: str) -> StreamClient:
            return await stack.enter_async_context(connect_stream(address, other_token))

        others = [await connect(await chat.session(owner.id)) for _ in range(5)]
        assert [client.status for client in others] == [200] * 5
        await activate()
        assert await chat.db.fetchval(active) == 5

        others[0].disconnect()
        await wait_until(lambda: chat.db.fetchval(f"select ({active}) = 4"))
        new_token = await chat.session(owner.id)
        async with hub.transaction() as tx:
            await activate_parked_streams(tx, [token_id])
            sixth = asyncio.create_task(connect(new_token))
            await wait_for_lock_of(chat.db, sixth)
        assert (await sixth).status == 429
        assert await chat.db.fetchval(active) == 5
        await wait_until(lambda: not any(stream.is_parked for stream in hub.relay.stream_registry))
