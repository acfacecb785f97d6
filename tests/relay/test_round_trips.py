"""How many statements a message costs."""

import asyncio
import math
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from itertools import count

import httpx2
import pytest

from pabal.db.doorbell.notify import NOTIFY_QUERY
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.relay.delivery import lane
from pabal.relay.reply import callback, reply
from pabal.relay.webhook import receive
from pabal.relay.webhook.payload import InboundPayload
from pabal.relay.webhook.receive import InboundDraft
from pabal.settings import Settings
from relay.bot import StreamClient, connect_stream
from relay.skills import send_message
from support.fake_kakao import FakeKakao
from support.relay_rows import Bot, Chat, Owner, skill_response
from support.server import serve_hub
from support.statement_log import StatementLog, run_statement_log
from support.wait import wait_until

pytestmark = pytest.mark.anyio

ROUND_TRIPS = 20
NUMBERS = count(1)

RECEIVE, CLAIM_CALLBACKS, SETTLE, CLAIM = (
    receive.Q.receive_messages,
    reply.Q.claim_callbacks,
    callback.Q.settle_callbacks,
    lane.LANE.q.claim,
)


@pytest.fixture
async def counting_proxy(database_urls: DatabaseUrls) -> AsyncGenerator[tuple[StatementLog, DatabaseUrls]]:
    async with run_statement_log(database_urls.main) as (counting_proxy, url):
        yield counting_proxy, DatabaseUrls(url, database_urls.direct)


@pytest.fixture
async def hub(counting_proxy: tuple[StatementLog, DatabaseUrls], settings: Settings) -> AsyncGenerator[Hub]:
    async with open_hub(settings, counting_proxy[1]) as running_hub:
        yield running_hub


@pytest.fixture
def statements(counting_proxy: tuple[StatementLog, DatabaseUrls]) -> StatementLog:
    return counting_proxy[0]


def build_draft(fake_kakao: FakeKakao, user: str) -> InboundDraft:
    number = next(NUMBERS)
    return InboundDraft(
        InboundPayload("channel", user, "hi", fake_kakao.url(f"{number}"), f"event:{number}", "{}"), is_command=False
    )


async def test_a_round_trip_is_one_insert_and_two_statements_for_its_reply(
    hub: Hub, statements: StatementLog, chat: Chat, fake_kakao: FakeKakao
) -> None:
    owner = await chat.owner()
    await chat.conversation(owner)
    async with (
        serve_hub(hub) as address,
        httpx2.AsyncClient(base_url=address) as web,
        connect_stream(address, owner.token) as client,
    ):
        await client.next("connected")
        await round_trip(web, client, owner, fake_kakao)
        statements.clear()
        started = time.monotonic()
        for _ in range(ROUND_TRIPS):
            await round_trip(web, client, owner, fake_kakao)
        polls = math.ceil((time.monotonic() - started) / 0.8)  # polls without a notification

    assert [statements.count(query) for query in (RECEIVE, CLAIM_CALLBACKS, SETTLE)] == [
        ROUND_TRIPS,
        ROUND_TRIPS,
        ROUND_TRIPS,
    ]
    # A message that arrives during a claim for its stream is queued, and claimed after it.
    assert statements.count(CLAIM) <= 2 * polls
    assert statements.count(NOTIFY_QUERY) <= polls


async def round_trip(web: httpx2.AsyncClient, client: StreamClient, owner: Owner, fake_kakao: FakeKakao) -> None:
    """From the webhook to the reply at the callback."""
    name = f"{next(NUMBERS)}"
    await send_message(web, name, callbackUrl=fake_kakao.url(name))
    message = await client.next_message()
    response = await web.post(
        "/openclaw/reply", json={"messageId": message["id"], "response": skill_response("hello")}, headers=owner.header
    )
    assert response.status_code == 200
    assert fake_kakao.texts(name) == [["hello"]]


async def test_concurrent_webhooks_share_one_statement(
    hub: Hub, statements: StatementLog, chat: Chat, fake_kakao: FakeKakao
) -> None:
    users = [f"user-{number}" for number in range(ROUND_TRIPS)]
    owner = await chat.owner()
    for user in users:
        await chat.conversation(owner, user)

    received = await asyncio.gather(*(hub.relay.webhook_batcher.put(build_draft(fake_kakao, user)) for user in users))

    assert all(result.message_id for result in received)
    assert statements.count(RECEIVE) == 1


async def test_one_claim_serves_all_waiting_streams(
    hub: Hub, statements: StatementLog, chat: Chat, fake_kakao: FakeKakao
) -> None:
    bots = [await Bot.of(hub, chat, fake_kakao, f"user-{number}") for number in range(ROUND_TRIPS)]
    async with serve_hub(hub) as address, AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(connect_stream(address, bot.owner.token)) for bot in bots]
        for client in streams:
            await client.next("connected")
        await wait_until(lambda: statements.count(CLAIM) > 0)
        statements.clear()
        started = time.monotonic()
        await asyncio.gather(
            *(hub.relay.webhook_batcher.put(build_draft(fake_kakao, f"user-{number}")) for number in range(ROUND_TRIPS))
        )
        for client, bot in zip(streams, bots, strict=True):
            assert (await client.next_message())["conversationKey"] == bot.key
        polls = math.ceil((time.monotonic() - started) / 0.8)

    assert statements.count(CLAIM) <= 1 + polls


async def test_concurrent_replies_claim_their_callbacks_in_one_statement(
    hub: Hub, statements: StatementLog, chat: Chat, fake_kakao: FakeKakao
) -> None:
    bots = [await Bot.of(hub, chat, fake_kakao, f"user-{number}") for number in range(ROUND_TRIPS)]
    messages = [await bot.insert_message(bot.key.partition(":")[2]) for bot in bots]

    await asyncio.gather(*(bot.send_reply(message, "hello") for bot, message in zip(bots, messages, strict=True)))

    assert fake_kakao.posts == ROUND_TRIPS
    assert statements.count(CLAIM_CALLBACKS) == 1
    assert statements.count(SETTLE) < ROUND_TRIPS
