"""The chat goes on while a table of another lane is locked, for example by a migration."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from uuid import UUID

import httpx2
import pytest

from pabal.core.errors import CallbackFailed
from pabal.hub import DatabaseUrls, Hub
from pabal.relay.event_outbox import publish_queued_events
from pabal.relay.reply.callback import rescue_lost_callbacks
from pabal.relay.webhook.message_events import publish_message_events
from pabal.relay.webhook.skill_response import KOREAN_TEXTS
from relay.people import add_account, create_code, send_command
from relay.skills import USE_CALLBACK, send_message
from support.clusters import open_connection
from support.fake_kakao import kakao_response
from support.relay_rows import Bot, Chat, Owner

pytestmark = pytest.mark.anyio

SUBSCRIBE = """
update public.services set permissions = '["write", "hub:events"]' where name = 'minu_find';
insert into pabal.subscriptions (service_name, mode, event_types) values ('minu_find', 'pull', '{relay.*}');
"""
FOREIGN_TABLES = """
select string_agg(c.oid::regclass::text, ', ' order by c.oid)
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p') and (
  n.nspname = 'notification' or n.nspname = 'pabal' and c.relname ~ '^(event_|plain_claims)'
  or n.nspname = 'public' and c.relname ~ '^(event_queue|dead_letter_queue)'
)
"""
"""All tables of the other lanes, but the subscriptions: the chat reads whether there is one for its events."""
RECEIVED = "select payload from event_queue where event_type = 'relay.message.received' and is_broadcast order by id"

FAILED = """
select coalesce(array_agg(payload ->> 'outcome' order by id), '{}') from event_queue
where event_type = 'relay.callback.failed'
"""
CLAIM_WITHOUT_RESULT = """
insert into relay_replies (message_id, account_id, conversation_key, spent_by, outcome, fence, spent_at)
values ($1, $2, $3, 'hub', 'sending', pabal.uuid7(), pabal.now() - interval '1 minute')
"""


@pytest.fixture
async def owner(chat: Chat) -> Owner:
    return await chat.owner()


@asynccontextmanager
async def other_lanes_locked(urls: DatabaseUrls) -> AsyncGenerator[None]:
    async with open_connection(urls.direct or urls.main) as connection, connection.transaction():
        tables = await connection.fetchval(FOREIGN_TABLES)
        assert "event_order" in tables
        assert "notification.toasts" in tables
        await connection.execute(f"lock table {tables} in access exclusive mode")
        yield


async def publish(hub: Hub, batch: int = 100) -> int:
    async with hub.autocommit() as tx:
        return await publish_message_events(tx, batch)


@pytest.mark.parametrize("setup", ["select 1", SUBSCRIBE], ids=["no subscriber", "subscriber"])
async def test_a_message_arrives_and_is_delivered_while_other_lanes_are_locked(
    web: httpx2.AsyncClient, chat: Chat, owner: Owner, database_urls: DatabaseUrls, setup: str
) -> None:
    await chat.conversation(owner)
    await chat.db.execute(setup)

    async with other_lanes_locked(database_urls):
        assert await send_message(web, "hello") == USE_CALLBACK
        response = await web.get("/openclaw/messages", headers=owner.header)

    assert [message["normalized"]["text"] for message in response.json()["messages"]] == ["hello"]


async def test_the_events_of_messages_are_published_once_and_in_order(
    hub: Hub, web: httpx2.AsyncClient, chat: Chat, owner: Owner, database_urls: DatabaseUrls
) -> None:
    await chat.conversation(owner)
    await chat.db.execute(SUBSCRIBE)
    async with other_lanes_locked(database_urls):
        for text in ("one", "two", "three"):
            await send_message(web, text)
    messages: list[UUID] = [row["id"] for row in await chat.db.fetch("select id from inbound_messages order by seq")]
    await chat.db.execute("delete from inbound_messages where id = $1", messages[1])  # erased meanwhile

    assert [await publish(hub, 2), await publish(hub, 2), await publish(hub, 2)] == [2, 1, 0]

    events = [json.loads(row["payload"])["message_id"] for row in await chat.db.fetch(RECEIVED)]
    assert events == [str(messages[0]), str(messages[2])]


async def test_a_failed_reply_is_settled_while_other_lanes_are_locked(bot: Bot, database_urls: DatabaseUrls) -> None:
    bot.kakao.responder = kakao_response("FAIL", "no")
    message, lost = await bot.insert_message("refused"), await bot.insert_message("lost")
    await bot.chat.db.execute(CLAIM_WITHOUT_RESULT, lost, bot.owner.id, bot.key)

    async with other_lanes_locked(database_urls), asyncio.timeout(20):
        with pytest.raises(CallbackFailed):
            await bot.send_reply(message, "an answer")
        assert await bot.chat.state(message) == "refused"
        async with bot.hub.transaction() as tx:
            assert await rescue_lost_callbacks(tx, 10) == 1

    assert await bot.chat.db.fetchval(FAILED) == []
    async with bot.hub.autocommit() as tx:
        published = [await publish_queued_events(tx, 1), await publish_queued_events(tx, 10)]
        assert (published, await publish_queued_events(tx, 10)) == ([1, 1], 0)
    assert await bot.chat.db.fetchval(FAILED) == ["refused", "unknown"]


async def test_a_user_pairs_while_other_lanes_are_locked(hub: Hub, chat: Chat, database_urls: DatabaseUrls) -> None:
    account = await add_account(hub)
    code = await create_code(hub, account.account)

    async with other_lanes_locked(database_urls), asyncio.timeout(20):
        assert await send_command(hub, "mina", f"/pair {code}") == KOREAN_TEXTS.paired.format(prefix="/")

    async with hub.autocommit() as tx:
        assert await publish_queued_events(tx, 10) == 1
    assert await chat.db.fetchval("select event_type from event_queue") == "relay.pairing.verified"


async def test_without_a_subscriber_nothing_is_noted(web: httpx2.AsyncClient, chat: Chat, owner: Owner) -> None:
    await chat.conversation(owner)

    await send_message(web, "hello")

    assert await chat.db.fetchval("select count(*) from pabal.relay_outbox") == 0
