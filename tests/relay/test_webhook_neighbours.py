"""Webhooks are answered in time whatever other callers do: they have database connections of their own."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import suppress
from itertools import count
from time import monotonic
from typing import Any

import httpx2
import pytest

from pabal.core.errors import RateLimited
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.operators.operators import Role
from pabal.queue import batcher
from pabal.relay.delivery import open_limits, takeover
from pabal.relay.privacy import export_conversation
from pabal.relay.webhook import receive
from pabal.settings import Settings
from relay.bot import connect_stream
from relay.people import TESTER
from relay.skills import USE_CALLBACK, post_webhook, send_message, skill_payload
from support.clusters import open_connection
from support.operator import sign_in
from support.relay_rows import Chat, Owner
from support.server import serve_hub
from support.statement_log import StatementLog, run_statement_log
from support.strict_client import StrictClient
from support.wait import COUNT_LOCK_WAITS, wait_until
from support.webhook import WEBHOOK_HEADERS

pytestmark = pytest.mark.anyio

NEIGHBOURS = 40
"""More than the pool has connections."""
WEBHOOKS = 5
KAKAO_TIMEOUT = 5.0
OPENING = ("BEGIN;", "token_hash", "open_relay_stream", "into public.relay_", "held_by like 'stream:'")
"""Parts of the statements that may open a stream, each of which occurs in no statement of the background."""


@pytest.fixture
async def counting_proxy(database_urls: DatabaseUrls) -> AsyncGenerator[tuple[StatementLog, DatabaseUrls]]:
    async with run_statement_log(database_urls.main) as (counting_proxy, url):
        yield counting_proxy, DatabaseUrls(url, database_urls.direct)


@pytest.fixture
async def hub(counting_proxy: tuple[StatementLog, DatabaseUrls], settings: Settings) -> AsyncGenerator[Hub]:
    async with open_hub(settings, counting_proxy[1]) as running_hub:
        yield running_hub


@pytest.fixture
async def owner(chat: Chat) -> Owner:
    owner = await chat.owner()
    await chat.conversation(owner)
    return owner


@pytest.fixture
async def address(hub: Hub) -> AsyncGenerator[str]:
    async with serve_hub(hub) as url:
        yield url


@pytest.fixture
async def web(address: str) -> AsyncGenerator[httpx2.AsyncClient]:
    limits = httpx2.Limits(max_connections=200)
    async with httpx2.AsyncClient(base_url=address, limits=limits, timeout=60) as client:
        yield client


async def start_openers(hub: Hub, web: httpx2.AsyncClient, chat: Chat) -> list[Coroutine[Any, Any, object]]:
    registry = hub.relay.stream_registry
    return [registry.open(await chat.session(None, paired=False), None) for _ in range(NEIGHBOURS)]


async def start_pollers(hub: Hub, web: httpx2.AsyncClient, chat: Chat) -> list[Coroutine[Any, Any, object]]:
    owner = await chat.owner()
    assert (await web.get("/v1/messages", headers=owner.header)).status_code == 200  # its limit has a row to lock
    return [web.get("/v1/messages", headers=owner.header) for _ in range(NEIGHBOURS)]


async def start_exports(hub: Hub, web: httpx2.AsyncClient, chat: Chat) -> list[Coroutine[Any, Any, object]]:
    key = await chat.conversation(await chat.owner(), "exported")

    async def export() -> object:
        async with hub.transaction() as tx:
            return await export_conversation(tx, key, TESTER)

    return [export() for _ in range(NEIGHBOURS)]


async def start_chores(hub: Hub, web: httpx2.AsyncClient, chat: Chat) -> list[Coroutine[Any, Any, object]]:
    return [hub.chores.run_due() for _ in range(NEIGHBOURS)]


StartNeighbours = Callable[[Hub, httpx2.AsyncClient, Chat], Coroutine[Any, Any, list[Coroutine[Any, Any, object]]]]


@pytest.mark.parametrize(
    ("start", "lock"),
    [
        (start_openers, "lock table relay_streams in exclusive mode"),  # webhooks read it
        (start_pollers, "select from pabal.limits where key like 'relay requests:%' for update"),
        (start_exports, "lock table pabal.audit_log"),
        (start_chores, "lock table pabal.chores"),
    ],
    ids=["openers", "pollers", "exports", "chores"],
)
async def test_webhooks_are_answered_while_all_neighbours_wait_in_the_database(
    hub: Hub,
    web: httpx2.AsyncClient,
    chat: Chat,
    owner: Owner,
    database_urls: DatabaseUrls,
    start: StartNeighbours,
    lock: str,
) -> None:
    """The neighbours keep every connection that they can get."""
    assert database_urls.direct
    neighbours = await start(hub, web, chat)
    async with open_connection(database_urls.direct) as blocker:
        async with blocker.transaction():
            await blocker.execute(lock)
            tasks = [asyncio.ensure_future(neighbour) for neighbour in neighbours]
            await wait_until(lambda: chat.db.fetchval(f"select ({COUNT_LOCK_WAITS}) > 0"))
            before = hub.db.connections_in_use()
            for number in range(WEBHOOKS):
                assert await send_message(web, f"text {number}") == USE_CALLBACK
        assert before > 0
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_webhook_of_a_locked_conversation_uses_the_time_that_kakao_waits(
    web: httpx2.AsyncClient,
    owner: Owner,
    database_urls: DatabaseUrls,
    counting_proxy: tuple[StatementLog, DatabaseUrls],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fixed number of attempts would end long before."""
    assert database_urls.direct
    monkeypatch.setattr(batcher, "RETRY_DELAY", 0.001)
    statements, _ = counting_proxy
    async with open_connection(database_urls.direct) as blocker:
        async with blocker.transaction():
            await blocker.execute("select from conversation_mappings for update")
            sending = asyncio.create_task(send_message(web, "hello"))
            await wait_until(lambda: statements.count(receive.Q.receive_messages) > 2 * batcher.MAX_WRITE_ATTEMPTS)
            assert not sending.done()
        assert await sending == USE_CALLBACK


async def test_webhooks_are_answered_during_a_flood_of_other_channels(web: httpx2.AsyncClient, owner: Owner) -> None:
    answers = 0
    is_over = asyncio.Event()

    async def flood(user: str) -> None:
        nonlocal answers
        while not is_over.is_set():
            await post_webhook(web, skill_payload("hi", user) | {"bot": {"id": "other"}})
            answers += 1

    tasks = [asyncio.create_task(flood(f"user {number}")) for number in range(NEIGHBOURS)]
    await wait_until(lambda: answers > NEIGHBOURS)
    for number in range(WEBHOOKS):
        assert await send_message(web, f"text {number}") == USE_CALLBACK
    is_over.set()
    await asyncio.gather(*tasks)


async def test_webhooks_are_answered_on_the_wire_before_kakao_gives_up(
    hub: Hub, address: str, web: httpx2.AsyncClient, chat: Chat, owner: Owner, database_urls: DatabaseUrls
) -> None:
    """Beside all neighbours at once, from the first byte of the request to the last of the response.

    The handler's own deadline does not see the time that a request waits in the server or for a busy loop.
    """
    assert database_urls.direct
    admin = await sign_in(hub, web, Role.ADMIN)
    pending_token = await chat.session(None, paired=False)
    exported = await chat.conversation(await chat.owner(), "exported")
    locked = await chat.conversation(owner, "locked")

    async def open_stream() -> None:
        async with connect_stream(address, pending_token):
            pass

    neighbours: list[tuple[int, Callable[[], Awaitable[object]]]] = [
        (12, open_stream),
        (6, lambda: web.get("/v1/messages", headers=owner.header)),
        (6, lambda: post_webhook(web, skill_payload("hi", "other") | {"bot": {"id": "other"}})),
        (2, lambda: admin.post("/console/relay/conversation/export", key=exported)),
        (1, hub.chores.run_due),
    ]
    rounds = Counter[int]()

    async def repeat(kind: int, act: Callable[[], Awaitable[object]]) -> None:
        while True:
            await act()
            rounds[kind] += 1

    async def measure_webhook(user: str) -> tuple[float, dict[str, Any]]:
        client = StrictClient(int(address.rpartition(":")[2]), WEBHOOK_HEADERS)
        started = monotonic()
        status, body = await client.request("POST", "/kakao/webhook", skill_payload("hello", user))
        assert status == 200
        client.close()
        return monotonic() - started, body

    tasks = [
        asyncio.create_task(repeat(kind, act)) for kind, (copies, act) in enumerate(neighbours) for _ in range(copies)
    ]
    async with open_connection(database_urls.direct) as blocker, blocker.transaction():
        await blocker.execute("select from conversation_mappings where conversation_key = $1 for update", locked)
        await wait_until(lambda: len(rounds) == len(neighbours))
        [(blocked_seconds, blocked), *others] = await asyncio.gather(*map(measure_webhook, ["locked", *["user"] * 5]))
    for task in tasks:
        assert not task.done() or task.exception() is None, task
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

    assert "template" in blocked, "nothing is stored, and the user reads why"
    assert blocked_seconds < KAKAO_TIMEOUT
    assert [body for _, body in others] == [USE_CALLBACK] * 5
    assert max(seconds for seconds, _ in others) < blocked_seconds


async def test_opening_a_stream_is_one_statement(
    address: str, counting_proxy: tuple[StatementLog, DatabaseUrls], chat: Chat, owner: Owner
) -> None:
    statements, _ = counting_proxy
    token = await chat.session(owner.id)
    statements.clear()
    async with connect_stream(address, token) as client:
        await client.next("connected")
        assert statements.count_containing(*OPENING) == 1
        assert statements.count(takeover.Q.open_stream) == 1


async def test_taking_over_with_messages_is_one_statement(
    address: str,
    web: httpx2.AsyncClient,
    counting_proxy: tuple[StatementLog, DatabaseUrls],
    chat: Chat,
    owner: Owner,
) -> None:
    statements, _ = counting_proxy
    async with connect_stream(address, owner.token) as first:
        await first.next("connected")
        await send_message(web, "hello")
        assert (await first.next_message())["normalized"]["text"] == "hello"
        statements.clear()
        async with connect_stream(address, owner.token) as second:
            await second.next("connected")
            assert statements.count_containing(*OPENING) == 1
            assert (await second.next_message())["normalized"]["text"] == "hello"
    assert await chat.db.fetchval("select count(*) from relay_control_events where kind = 'parked'") == 1


async def test_a_client_that_opens_streams_in_a_loop_is_refused_before_the_database(
    address: str, counting_proxy: tuple[StatementLog, DatabaseUrls], chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_limits, "REFUSAL_DELAY", 0)
    statements, _ = counting_proxy
    token = await chat.session(None, paired=False)
    statuses: list[int] = []

    async def open_and_drop() -> None:
        for _ in range(20):
            async with connect_stream(address, token) as client:
                statuses.append(client.status)
                if client.status == 429:
                    assert int(client.headers["retry-after"]) >= 1

    await asyncio.gather(*(open_and_drop() for _ in range(12)))
    assert {*statuses} == {200, 429}
    assert statements.count(takeover.Q.open_stream) == statuses.count(200)
    async with connect_stream(address, await chat.session(None, paired=False)) as other:
        assert other.status == 200


async def test_a_refused_client_waits_and_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_limits, "REFUSAL_DELAY", 3600)
    limits = open_limits.StreamOpenLimits()

    async def open_once(token: str) -> None:
        async with limits.opening(token, "127.0.0.1"):
            pass

    for _ in range(30):
        await open_once("one")
    refused = asyncio.create_task(open_once("one"))
    await open_once("another")
    assert not refused.done()
    refused.cancel()


async def test_invalid_tokens_are_refused_before_the_database_and_valid_ones_are_not(
    address: str,
    counting_proxy: tuple[StatementLog, DatabaseUrls],
    owner: Owner,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(open_limits, "REFUSAL_DELAY", 0)
    statements, _ = counting_proxy
    async with connect_stream(address, owner.token) as client:
        await client.next("connected")
    statuses: list[int] = []
    for number in range(60):
        async with connect_stream(address, f"{number:064x}") as client:
            statuses.append(client.status)
    assert {*statuses} == {401, 429}
    assert statements.count(takeover.Q.open_stream) == statuses.count(401) + 1
    async with connect_stream(address, owner.token) as client:
        assert client.status == 200


async def test_one_address_opens_5000_streams_at_once_and_then_100_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a proxy that the hub does not trust, all clients have one address and reconnect at once."""
    now = 1000.0
    monkeypatch.setattr(open_limits, "monotonic", lambda: now)
    monkeypatch.setattr(open_limits, "REFUSAL_DELAY", 0)
    limits = open_limits.StreamOpenLimits()
    tokens = count()

    async def count_opened(attempts: int, address: str = "2001:db8::1") -> int:
        opened = 0
        for _ in range(attempts):
            with suppress(RateLimited):
                async with limits.opening(f"token {next(tokens)}", address):
                    opened += 1
        return opened

    assert await count_opened(6000) == 5000
    assert await count_opened(10, "2001:db8::2") == 0, "an IPv6 client has more than one address"
    assert await count_opened(10, "2001:db8:1::1") == 10
    now += 1
    assert await count_opened(200) == 100


def test_a_limit_remembers_a_bounded_number_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_limits, "MAX_REMEMBERED_KEYS", 3)
    limit = open_limits.LocalRateLimit("calls", burst=1, interval=3600)
    for key in "abcd":
        limit.check(key)
        limit.count(key)
    limit.check("a")  # forgotten
    with pytest.raises(open_limits.RateLimited):
        limit.check("b")
