"""Messages are listed, read and followed by their account only, without the callback URL."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, get_args
from uuid import UUID

import httpx2
import msgspec
import pytest

from pabal.core.errors import Invalid, MessageNotFound
from pabal.core.ids import new_id
from pabal.db.queries import parse_queries
from pabal.hub import Hub
from pabal.relay.delivery.follow import MessageFollower
from pabal.relay.delivery.lane import LANE
from pabal.relay.delivery.poll import ack_messages
from pabal.relay.messages import (
    InboundMessagePage,
    MessageDetails,
    MessageFilter,
    MessageStatus,
    find_message,
    list_messages,
)
from support.clusters import Connection
from support.relay_rows import Bot
from support.webhook import WEBHOOK_HEADERS

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]

FILL_TABLES = """
insert into inbound_messages (id, account_id, conversation_key, kakao_payload, normalized, source_event_id, status)
select pabal.uuid7(), $1, $2, '{}', '{}', gen_random_uuid()::text, $3 from generate_series(1, $4::integer)
"""

[FLUSH] = parse_queries("""
-- name: flush
select pg_stat_force_next_flush()
""")


async def list_page(hub: Hub, limit: int = 50, cursor: str | None = None, **criteria: Any) -> InboundMessagePage:
    async with hub.autocommit() as tx:
        return await list_messages(tx, MessageFilter(**criteria), limit, cursor)


async def ids(hub: Hub, **criteria: Any) -> list[UUID]:
    return [message.id for message in (await list_page(hub, **criteria)).items]


async def read_message(hub: Hub, message: UUID, account: UUID | None = None) -> MessageDetails:
    async with hub.autocommit() as tx:
        return await find_message(tx, message, account)


async def insert_message(bot: Bot, key: str | None = None) -> UUID:
    """Insert a message with an id as the hub creates it."""
    message = new_id()
    await bot.chat.db.execute(
        "insert into inbound_messages (id, account_id, conversation_key, kakao_payload, normalized, source_event_id)"
        """ values ($1, $2, $3, '{}', '{"text": "안녕"}', $4)""",
        message,
        bot.owner.id,
        key or bot.key,
        str(message),
    )
    return message


async def test_every_filter_lists_newest_first_in_pages(bot: Bot, hub: Hub) -> None:
    other = Bot(hub, bot.chat, bot.kakao, await bot.chat.owner(), "channel:other")
    own = [await insert_message(bot) for _ in range(5)]
    others = [await insert_message(other) for _ in range(2)]
    async with hub.transaction() as tx:
        await ack_messages(tx, bot.owner.id, [own[1], own[3]])
    all_ids = [*reversed(others), *reversed(own)]

    for criteria, expected in (
        ({}, all_ids),
        ({"account_id": bot.owner.id}, own[::-1]),
        ({"conversation_key": bot.key}, own[::-1]),
        ({"conversation_key": bot.key, "account_id": other.owner.id}, []),
        ({"account_id": bot.owner.id, "status": "ACKED"}, [own[3], own[1]]),
        ({"status": "QUEUED"}, [*reversed(others), own[4], own[2], own[0]]),
        ({"conversation_key": bot.key, "status": "ACKED"}, [own[3], own[1]]),
        ({"status": "EXPIRED"}, []),
    ):
        assert await ids(hub, **criteria) == expected, criteria
        listed_ids, cursor = list[UUID](), None
        while True:
            page = await list_page(hub, 2, cursor, **criteria)
            listed_ids += [message.id for message in page.items]
            if page.cursor is None:
                break
            cursor = page.cursor
        assert listed_ids == expected, criteria


@pytest.mark.parametrize("cursor", ["", "x", "1.2", "-1." + "0" * 32, "9" * 19 + "." + "0" * 32])
async def test_an_invalid_cursor_is_refused(hub: Hub, cursor: str) -> None:
    with pytest.raises(Invalid, match="cursor"):
        await list_page(hub, cursor=cursor)


@pytest.mark.parametrize(
    "criteria",
    [{}, {"account_id": 1}, {"account_id": 1, "status": "CANCELLED"}, {"status": "CANCELLED"}, {"conversation_key": 1}],
)
async def test_a_page_reads_few_rows_of_a_large_table(bot: Bot, hub: Hub, criteria: dict[str, Any]) -> None:
    for status, count in (("ACKED", 20_000), ("QUEUED", 2000), ("CANCELLED", 3)):
        await bot.chat.db.execute(FILL_TABLES, bot.owner.id, bot.key, status, count)
    await bot.chat.db.execute("analyze inbound_messages")
    await bot.chat.db.execute("select pg_stat_force_next_flush()")
    criteria |= {"account_id": bot.owner.id} if "account_id" in criteria else {}
    criteria |= {"conversation_key": bot.key} if "conversation_key" in criteria else {}
    before = await rows_read(bot.chat.db)

    async with hub.autocommit() as tx:
        page = await list_messages(tx, MessageFilter(**criteria), 10)
        await tx.value(FLUSH)  # start counting the reads of this connection

    assert len(page.items) == (3 if criteria.get("status") else 10)
    assert 3 <= await rows_read(bot.chat.db) - before < 200


async def rows_read(db: Connection) -> int:
    """Rows of messages read so far."""
    return await db.fetchval(
        "select seq_tup_read + coalesce(idx_tup_fetch, 0) from pg_stat_user_tables where relname = 'inbound_messages'"
    )


async def test_a_message_is_read_with_its_reply_and_without_its_callback_url(
    bot: Bot, hub: Hub, web: httpx2.AsyncClient
) -> None:
    url = bot.kakao.url("first")
    payload = {
        "bot": {"id": "channel"},
        "userRequest": {
            "user": {"id": "user"},
            "utterance": "안녕",
            "callbackUrl": url,
            "params": {"surface": "Kakaotalk"},
        },
    }
    assert (await web.post("/kakao/webhook", json=payload, headers=WEBHOOK_HEADERS)).json()["useCallback"] is True
    [message] = await ids(hub)
    assert (await read_message(hub, message)).reply is None

    sent = await bot.send_reply(message, "hello")

    details = await read_message(hub, message, bot.owner.id)
    assert (details.message.text, details.message.status, details.message.reply) == ("안녕", "ACKED", "sent")
    assert details.payload["userRequest"] == {
        name: value for name, value in payload["userRequest"].items() if name != "callbackUrl"
    }
    assert details.reply is not None
    assert (details.reply.id, details.reply.spent_by, details.reply.outcome) == (sent.reply_id, "agent", "sent")
    assert details.reply.response is not None
    assert details.reply.response["template"]["outputs"] == [{"simpleText": {"text": "hello"}}]
    assert (details.reply.kakao or {})["status"] == "SUCCESS"
    assert url not in msgspec.json.encode(details, enc_hook=str).decode()
    assert bot.owner.token not in repr(details)


async def test_a_message_of_another_account_is_not_found(bot: Bot, hub: Hub) -> None:
    message = await insert_message(bot)
    other = await bot.chat.owner()

    for account in (other.id, new_id()):
        with pytest.raises(MessageNotFound):
            await read_message(hub, message, account)
    assert await ids(hub, account_id=other.id) == []
    assert (await read_message(hub, message)).message.id == message


async def test_every_status_is_a_filter(bot: Bot, hub: Hub) -> None:
    for status in get_args(MessageStatus):
        await bot.chat.db.execute(FILL_TABLES, bot.owner.id, bot.key, status, 1)

    for status in get_args(MessageStatus):
        [message] = (await list_page(hub, status=status)).items
        assert message.status == status


class Follower:
    """A follower that reports changes as short tuples."""

    def __init__(self, hub: Hub, **criteria: Any) -> None:
        self.hub = hub
        self.tail = MessageFollower(**criteria)

    async def start(self) -> None:
        async with self.hub.autocommit() as tx:
            await self.tail.start(tx)

    async def poll(self) -> list[tuple[str, UUID, str, str | None]]:
        async with self.hub.autocommit() as tx:
            changes = await self.tail.poll(tx)
        return [(change.kind, change.message.id, change.message.status, change.message.reply) for change in changes]


async def test_a_message_is_followed_from_arrival_to_reply(bot: Bot, hub: Hub, travel: Travel) -> None:
    follower = Follower(hub)
    await follower.start()
    first = await bot.insert_message("first")
    second = await bot.insert_message("second")
    assert await follower.poll() == [("came", first, "QUEUED", None), ("came", second, "QUEUED", None)]

    async with hub.autocommit() as tx:
        await LANE.claim(tx, 1, timedelta(minutes=1), "poll:tester", bot.owner.id)
    assert await follower.poll() == [("changed", first, "DELIVERED", None)]
    async with hub.transaction() as tx:
        await ack_messages(tx, bot.owner.id, [first])
    assert await follower.poll() == [("changed", first, "ACKED", None)]
    await travel(timedelta(seconds=30))
    assert await follower.poll() == []
    await bot.send_reply(first, "hello")
    assert await follower.poll() == [("changed", first, "ACKED", "sent")]
    assert await follower.poll() == []

    await travel(timedelta(minutes=15))
    async with hub.transaction() as tx:
        await LANE.expire(tx, 10)
    assert await follower.poll() == [("changed", second, "EXPIRED", "late")]
    third = await bot.insert_message("third")
    await bot.send_reply(third, "awake")
    assert await follower.poll() == [("changed", second, "EXPIRED", "shown"), ("came", third, "ACKED", "sent")]
    await travel(timedelta(minutes=1))
    assert await follower.poll() == []


async def test_an_existing_message_is_reported_when_it_changes(bot: Bot, hub: Hub) -> None:
    open_message, ended_message = await insert_message(bot), await insert_message(bot)
    async with hub.transaction() as tx:
        await ack_messages(tx, bot.owner.id, [ended_message])
    follower = Follower(hub)
    await follower.start()
    assert await follower.poll() == []

    async with hub.transaction() as tx:
        await ack_messages(tx, bot.owner.id, [open_message])

    assert await follower.poll() == [("changed", open_message, "ACKED", None)]


async def test_a_follower_reports_only_messages_of_its_filter(bot: Bot, hub: Hub) -> None:
    other = Bot(hub, bot.chat, bot.kakao, await bot.chat.owner(), "channel:other")
    account, conversation = Follower(hub, account=other.owner.id), Follower(hub, conversation="channel:third")
    for follower in (account, conversation):
        await follower.start()

    await insert_message(bot)
    other_message, third_message = await insert_message(other), await insert_message(bot, "channel:third")

    assert await account.poll() == [("came", other_message, "QUEUED", None)]
    assert await conversation.poll() == [("came", third_message, "QUEUED", None)]
