"""Messages of a conversation are claimed in order of arrival, even if one changes concurrently."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from uuid import UUID

import pytest

from pabal.hub import DatabaseUrls
from pabal.relay.delivery.lane import LANE
from pabal.relay.webhook.recall import VoidedCallback, void_callbacks
from pabal.relay.webhook.receive import ReceiveResult, save_first_response
from support.clusters import Connection, open_connection
from support.relay_rows import Bot
from support.wait import wait_until

pytestmark = pytest.mark.anyio

Change = Callable[[Bot, UUID], Awaitable[None]]
MINUTE = timedelta(minutes=1)

BLOCKING_NOW = """
create or replace function pabal.now() returns timestamptz language plpgsql volatile as $$
begin
  perform pg_advisory_xact_lock_shared(7);
  return now();
end
$$
"""
"""`pabal.now()` waits at an advisory lock; by then, the calling statement has taken its snapshot."""
IS_WAITING = """
select count(*) = 1 from pg_locks
where locktype = 'advisory' and not granted
  and database = (select oid from pg_database where datname = current_database())
"""

SET_CLAIMED = """
update inbound_messages
set status = 'DELIVERED', lease = gen_random_uuid(), leased_until = now() + interval '1 min', held_by = 'poll:other',
    delivered_at = now(), delivery_count = 1
where id = $1
"""


@asynccontextmanager
async def blocked_clock(database_urls: DatabaseUrls) -> AsyncGenerator[Connection]:
    """Block every statement that calls `pabal.now()` until the end of the block."""
    assert database_urls.direct
    async with open_connection(database_urls.direct) as blocker:
        await blocker.execute("select pg_advisory_lock(7)")
        await blocker.execute(BLOCKING_NOW)
        yield blocker


async def save_late_response(bot: Bot, message: UUID) -> None:
    """A message without a callback whose first response is kept for a duplicate."""
    received = ReceiveResult("PAIRED", bot.owner.id, False, message, None, None, False)
    async with bot.hub.transaction() as tx:
        await save_first_response(tx, received, {"version": "2.0"})


async def recall_callback(bot: Bot, message: UUID) -> None:
    """The webhook exceeded its deadline."""
    row = await bot.chat.db.fetchrow("select channel_id, source_event_id from inbound_messages where id = $1", message)
    assert row
    async with bot.hub.autocommit() as tx:
        await void_callbacks(tx, [VoidedCallback(bot.key, row["channel_id"], row["source_event_id"], 0)])


async def touch_row(bot: Bot, message: UUID) -> None:
    """An update outside of the hub."""
    await bot.chat.db.execute(
        "update inbound_messages set expires_at = expires_at + interval '1 s' where id = $1", message
    )


async def claim(bot: Bot) -> list[UUID]:
    async with bot.hub.autocommit() as tx:
        return [message.id for message in await LANE.claim(tx, 10, MINUTE, "poll:tester", bot.owner.id)]


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("change", [save_late_response, recall_callback, touch_row])
async def test_a_message_changed_during_a_claim_is_not_overtaken(
    bot: Bot, database_urls: DatabaseUrls, change: Change, index: int
) -> None:
    messages = [await bot.insert_message(name) for name in ("first", "second", "third")]
    async with blocked_clock(database_urls) as blocker:
        claiming = asyncio.create_task(claim(bot))
        await wait_until(lambda: blocker.fetchval(IS_WAITING))
        await change(bot, messages[index])
        await blocker.execute("select pg_advisory_unlock(7)")

        assert await claiming == messages
    assert await bot.chat.db.fetchval("select sum(delivery_count) from inbound_messages") == len(messages)


async def test_later_messages_wait_for_a_locked_earlier_one(bot: Bot, database_urls: DatabaseUrls) -> None:
    first, second = await bot.insert_message("first"), await bot.insert_message("second")
    assert database_urls.direct
    async with open_connection(database_urls.direct) as blocker, blocker.transaction():
        await blocker.execute("update inbound_messages set answer = '{}' where id = $1", first)

        assert await claim(bot) == []

    assert await claim(bot) == [first, second]


async def test_messages_left_to_a_concurrent_claim_are_claimed_again(bot: Bot, database_urls: DatabaseUrls) -> None:
    """Two concurrent claims leave messages to each other; without another attempt they would wait for the next poll."""
    first, second = await bot.insert_message("first"), await bot.insert_message("second")
    async with blocked_clock(database_urls) as blocker:
        claiming = asyncio.create_task(claim(bot))
        await wait_until(lambda: blocker.fetchval(IS_WAITING))
        await bot.chat.db.execute(SET_CLAIMED, first)
        await blocker.execute("select pg_advisory_unlock(7)")

        assert await claiming == [second]
