"""Webhooks that arrive together are stored by one statement, also those of one conversation."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from itertools import count

import httpx2
import pytest

from pabal.core.errors import RateLimited
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.relay.delivery import stream
from pabal.relay.webhook import receive
from pabal.relay.webhook.payload import InboundPayload
from pabal.relay.webhook.receive import InboundDraft, ReceiveResult
from pabal.settings import Settings
from relay.bot import connect_stream
from relay.skills import send_message
from support.relay_rows import Chat, Owner
from support.server import serve_hub
from support.statement_log import StatementLog, run_statement_log

pytestmark = pytest.mark.anyio

NUMBERS = count(1)
SELECT_TEXTS = "select normalized ->> 'text' from inbound_messages where conversation_key = $1 order by seq"


def build_draft(text: str, user: str = "user", event: str = "", *, is_command: bool = False) -> InboundDraft:
    event_id = event or f"event:{next(NUMBERS)}"
    return InboundDraft(InboundPayload("channel", user, text, f"https://kakao/{text}", event_id, "{}"), is_command)


@pytest.fixture
async def counting_proxy(database_urls: DatabaseUrls) -> AsyncGenerator[tuple[StatementLog, DatabaseUrls]]:
    async with run_statement_log(database_urls.main) as (proxy, url):
        yield proxy, DatabaseUrls(url, database_urls.direct)


@pytest.fixture
def statements(counting_proxy: tuple[StatementLog, DatabaseUrls]) -> StatementLog:
    return counting_proxy[0]


@pytest.fixture
async def hub(counting_proxy: tuple[StatementLog, DatabaseUrls], settings: Settings) -> AsyncGenerator[Hub]:
    limited = settings.model_copy(update={"webhook_per_conversation": 10})
    async with open_hub(limited, counting_proxy[1]) as running_hub:
        yield running_hub


@pytest.fixture
async def owner(chat: Chat) -> Owner:
    owner = await chat.owner()
    await chat.conversation(owner)
    return owner


async def put_together(hub: Hub, drafts: Sequence[InboundDraft]) -> list[ReceiveResult | BaseException]:
    return await asyncio.gather(*(hub.relay.webhook_batcher.put(draft) for draft in drafts), return_exceptions=True)


async def texts_of(chat: Chat, user: str = "user") -> list[str]:
    return [row[0] for row in await chat.db.fetch(SELECT_TEXTS, f"channel:{user}")]


async def test_messages_of_one_conversation_share_one_statement_in_order(
    hub: Hub, statements: StatementLog, chat: Chat, owner: Owner
) -> None:
    await chat.conversation(owner, "other")
    texts = ["z", "a", "m", "b"]
    drafts = [build_draft(text, user) for text in texts for user in ("user", "other")]

    results = await put_together(hub, [*drafts, build_draft("/help", is_command=True)])

    assert [bool(result.message_id) for result in results if isinstance(result, ReceiveResult)] == [True] * 8 + [False]
    assert statements.count(receive.Q.receive_messages) == 1
    assert await texts_of(chat) == await texts_of(chat, "other") == texts
    callbacks = await chat.db.fetch("select last_callback_url from conversation_mappings order by conversation_key")
    assert [row[0] for row in callbacks] == ["https://kakao/b", "https://kakao//help"]


async def test_above_its_limit_a_conversation_keeps_the_earliest_of_a_batch(
    hub: Hub, statements: StatementLog, chat: Chat, owner: Owner
) -> None:
    await chat.conversation(owner, "other")

    results = await put_together(hub, [*(build_draft(f"{n}") for n in range(13)), build_draft("alone", "other")])

    assert [isinstance(result, RateLimited) for result in results] == [False] * 10 + [True] * 3 + [False]
    assert await texts_of(chat) == [f"{n}" for n in range(10)]
    assert await texts_of(chat, "other") == ["alone"]
    assert statements.count(receive.Q.receive_messages) == 1


async def test_the_messages_of_a_new_user_take_one_place_of_the_new_conversations(
    hub: Hub, statements: StatementLog, chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receive, "MAX_NEW_CONVERSATIONS_PER_CHANNEL", 2)

    results = await put_together(
        hub,
        [*(build_draft(f"{n}", "first") for n in range(3)), build_draft("hi", "second"), build_draft("hi", "third")],
    )

    assert [isinstance(result, ReceiveResult) and result.is_stored for result in results] == [True] * 4 + [False]
    users = await chat.db.fetch("select plusfriend_user_key from conversation_mappings order by 1")
    assert [row[0] for row in users] == ["first", "second"]
    assert statements.count(receive.Q.receive_messages) == 1


async def test_a_repeated_webhook_in_the_same_batch_is_one_message(hub: Hub, chat: Chat, owner: Owner) -> None:
    first, second = await put_together(hub, [build_draft("hi", event="same"), build_draft("hi", event="same")])

    assert isinstance(first, ReceiveResult)
    assert isinstance(second, ReceiveResult)
    assert first.message_id is not None
    assert (second.message_id, second.duplicate_of) == (None, first.message_id)
    assert await texts_of(chat) == ["hi"]


async def test_a_batch_of_one_conversation_reaches_its_stream_in_order(
    hub: Hub, statements: StatementLog, chat: Chat, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that find no room on the stream are queued, and no later one of their conversation overtakes them."""
    monkeypatch.setattr(stream, "MAX_MESSAGES_IN_FLIGHT", 4)
    await chat.conversation(owner, "other")
    async with (
        serve_hub(hub) as address,
        httpx2.AsyncClient(base_url=address) as web,
        connect_stream(address, owner.token) as client,
    ):
        await client.next("connected")
        for user in ("user", "other"):  # the hub gets to know the conversations
            await send_message(web, "first", user)
            await acknowledge(web, owner, (await client.next_message())["id"])
        statements.clear()
        drafts = [build_draft(f"{n}") for n in range(6)] + [build_draft(f"{n}", "other") for n in range(6)]
        await put_together(hub, drafts)
        assert statements.count(receive.Q.receive_messages) == 1
        assert await chat.db.fetchval("select count(*) from inbound_messages where status = 'DELIVERED'") == 4

        received = [await client.next_message() for _ in range(4)]
        for _ in range(8):
            await acknowledge(web, owner, received[-4]["id"])
            received.append(await client.next_message())
        ids = [event.id for event in client.received if event.name == "message"]

    for user in ("user", "other"):
        texts = [m["normalized"]["text"] for m in received if m["conversationKey"] == f"channel:{user}"]
        assert texts == [f"{n}" for n in range(6)]
    assert ids == sorted(ids)


async def acknowledge(web: httpx2.AsyncClient, owner: Owner, message_id: str) -> None:
    """Acknowledge a message, which frees its slot."""
    response = await web.post("/v1/messages/ack", json={"messageIds": [message_id]}, headers=owner.header)
    assert response.status_code == 200, response.text
