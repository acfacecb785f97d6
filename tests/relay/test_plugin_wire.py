"""The wire of the unmodified plugins: what they send, and what they do when the hub or the network fails them."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack

import httpx2
import pytest

from pabal.core.actor import HUB_ACTOR
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.relay.accounts import rotate_relay_token
from relay.bot import connect_stream
from relay.plugin_wire import WIRES, PluginClient, PluginWire, running_plugin
from relay.skills import USE_CALLBACK, post_webhook, send_message, skill_payload, text_of
from support.fake_kakao import FakeKakao
from support.relay_rows import Chat, Owner
from support.server import serve_hub
from support.silent_hop import silent_hop
from support.wait import wait_until

pytestmark = pytest.mark.anyio

ALL_DELIVERED = "select count(*) = 0 from inbound_messages where status = 'QUEUED'"
EVERY_WIRE = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)


@pytest.fixture
async def owner(chat: Chat) -> Owner:
    owner = await chat.owner(answer_mode="callback")
    await chat.conversation(owner)
    return owner


@pytest.fixture
async def token(chat: Chat, owner: Owner) -> str:
    """The token that a plugin has stored: a paired session."""
    return await chat.session(owner.id)


@pytest.fixture
async def address(hub: Hub) -> AsyncGenerator[str]:
    async with serve_hub(hub) as url:
        yield url


@pytest.fixture
async def web(address: str) -> AsyncGenerator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=address) as client:
        yield client


async def write(web: httpx2.AsyncClient, kakao: FakeKakao, *texts: str) -> None:
    """Write as the user; each message has a callback of its own."""
    for text in texts:
        assert await send_message(web, text, callbackUrl=kakao.url(text)) == USE_CALLBACK


async def wait_for_answers(plugin: PluginClient, kakao: FakeKakao, *texts: str) -> None:
    """Wait until each message is answered and the plugin knows it, and check that it is answered once."""
    await wait_until(lambda: {*texts} <= plugin.replies.keys())
    assert [kakao.texts(text) for text in texts] == [[[f"re: {text}"]] for text in texts]


@EVERY_WIRE
async def test_a_plugin_pairs_receives_and_replies(
    web: httpx2.AsyncClient, address: str, fake_kakao: FakeKakao, wire: PluginWire
) -> None:
    async with running_plugin(wire, address) as plugin:
        await wait_until(lambda: plugin.events == ["connected"])
        assert await plugin.check_status() == "pending_pairing"

        await post_webhook(web, skill_payload(f"/pair {plugin.code}"))
        await wait_until(lambda: "pairing_complete" in plugin.events)
        await wait_until(lambda: len(plugin.opened) == 1 + wire.hangs_up_after_pairing)
        response = await send_message(web, "hello", callbackUrl=fake_kakao.url("hello"))
        if response == USE_CALLBACK:  # the account is new: its bot may answer in the webhook's response
            await wait_for_answers(plugin, fake_kakao, "hello")
        else:
            assert text_of(response) == "re: hello"

        assert await plugin.check_status() == "paired"
        assert await plugin.check_health() == 200
        await wait_until(lambda: plugin.replies == {"hello": 200})

    bearer = {"authorization": "Bearer TOKEN"}
    stream = bearer | {"accept": "text/event-stream", "cache-control": "no-cache"}
    status = ("GET", "/v1/sessions/TOKEN/status", {"accept": "application/json"})
    json_body = {"content-type": "application/json"}
    assert plugin.requests == [
        ("POST", "/v1/sessions/create", json_body),
        ("GET", "/v1/events", stream),
        status,
        *([("GET", "/v1/events", stream | {"last-event-id": "0"})] if wire.hangs_up_after_pairing else []),
        ("POST", "/openclaw/reply", bearer | json_body),
        status,
        ("GET", "//health", bearer),
    ]
    assert plugin.delays == [], "the plugin reconnects after its pairing at once"
    assert plugin.turns == ["hello"]


@EVERY_WIRE
async def test_a_plugin_behind_a_hop_that_lost_its_state_gets_every_message_once(
    web: httpx2.AsyncClient, address: str, chat: Chat, fake_kakao: FakeKakao, token: str, wire: PluginWire
) -> None:
    async with silent_hop(address) as hop, running_plugin(wire, hop.address, token=token) as plugin:
        await wait_until(lambda: plugin.events == ["connected"])
        await write(web, fake_kakao, "before")
        await wait_for_answers(plugin, fake_kakao, "before")
        for loss in range(7):  # more than streams may be active or parked
            hop.swallow()
            lost = [f"{loss}-{number}" for number in range(3)]
            await write(web, fake_kakao, *lost)
            await wait_until(lambda: chat.db.fetchval(ALL_DELIVERED))
            plugin.drop()
            await wait_for_answers(plugin, fake_kakao, *lost)

    assert plugin.opened == [200] * 8
    assert plugin.delays == [2.0] * 7, "each stream opened, so each retry is a first one"
    assert len(plugin.turns) == len({*plugin.turns}) == 1 + 7 * 3
    assert {*plugin.replies.values()} == {200}


@EVERY_WIRE
async def test_a_connection_that_breaks_in_a_turn_starts_no_second_one(
    web: httpx2.AsyncClient, address: str, fake_kakao: FakeKakao, token: str, wire: PluginWire
) -> None:
    may_answer = asyncio.Event()

    async def think(text: str) -> str:
        await may_answer.wait()
        return await PluginClient.answer(text)

    async with running_plugin(wire, address, think, token) as plugin:
        await wait_until(lambda: plugin.events == ["connected"])
        await write(web, fake_kakao, "one", "two")
        in_flight = ["one", "two"] if wire.has_concurrent_turns else ["one"]
        await wait_until(lambda: plugin.turns == in_flight)
        plugin.drop()
        if wire.has_concurrent_turns:
            await wait_until(lambda: len(plugin.opened) == 2)
        may_answer.set()
        await wait_for_answers(plugin, fake_kakao, "one", "two")

    assert plugin.turns == ["one", "two"]
    assert plugin.replies == {"one": 200, "two": 200}


@EVERY_WIRE
async def test_a_plugin_moves_to_another_process_when_its_own_stops(
    address: str, hub: Hub, database_urls: DatabaseUrls, fake_kakao: FakeKakao, token: str, wire: PluginWire
) -> None:
    """As in a rolling restart: the stream ends cleanly, and the same address leads to the next process."""
    async with AsyncExitStack() as stack:
        other_hub = await stack.enter_async_context(open_hub(hub.settings, database_urls))
        other_address = await stack.enter_async_context(serve_hub(other_hub))
        web = await stack.enter_async_context(httpx2.AsyncClient(base_url=other_address))
        plugin = await stack.enter_async_context(running_plugin(wire, address, token=token))
        await wait_until(lambda: plugin.events == ["connected"])
        plugin.address = other_address
        hub.relay.stream_registry.close_all()
        await write(web, fake_kakao, "one", "two")
        await wait_for_answers(plugin, fake_kakao, "one", "two")

    assert plugin.opened == [200, 200]
    assert plugin.delays == [wire.clean_close_delay]
    assert plugin.turns == ["one", "two"]


@EVERY_WIRE
async def test_a_plugin_deletes_its_token_only_when_it_is_revoked(
    address: str, chat: Chat, hub: Hub, owner: Owner, token: str, wire: PluginWire
) -> None:
    await chat.db.execute("update accounts set disabled_at = pabal.now() where id = $1", owner.id)
    async with running_plugin(wire, address, token=token) as plugin:
        await wait_until(lambda: plugin.gave_up)
    assert plugin.opened == [403] * 10
    assert plugin.token == token

    await chat.db.execute("update accounts set disabled_at = null where id = $1", owner.id)
    async with running_plugin(wire, address, token=token) as plugin:
        await wait_until(lambda: plugin.events == ["connected"])
        async with hub.transaction() as tx:
            await rotate_relay_token(tx, owner.id, HUB_ACTOR, revoke_sessions=True)
        await wait_until(lambda: plugin.gave_up or plugin.token is None)
    assert plugin.opened == [200, *([401] if wire.deletes_invalid_token else [401] * 10)]


@EVERY_WIRE
async def test_a_plugin_gives_up_after_ten_refused_streams(
    address: str, chat: Chat, owner: Owner, token: str, wire: PluginWire
) -> None:
    """Five other tokens of the account are connected: the only way to a 429 for a stream."""
    async with AsyncExitStack() as stack:
        for _ in range(5):
            other = await chat.session(owner.id)
            assert (await stack.enter_async_context(connect_stream(address, other))).status == 200
        plugin = await stack.enter_async_context(running_plugin(wire, address, token=token))
        await wait_until(lambda: plugin.gave_up)

    assert plugin.opened == [429] * 10
    assert plugin.delays == [2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, 30.0, 30.0]
    assert plugin.token == token
