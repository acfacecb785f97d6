"""Replies that wait for a rate limit: one account's delay no other's, and waiting costs a bounded amount of work."""

import json
from datetime import timedelta

import pytest

from pabal.core.errors import RateLimited
from pabal.relay.reply import reply, send, waiting
from pabal.relay.reply.callback import ClaimedCallback
from pabal.relay.reply.poller import CALLBACK_BATCH_SIZE
from pabal.relay.reply.reply import BotReply, claim_callbacks
from relay.test_stall import Travel
from relay.test_waiting_replies import RATE_LIMIT, STEP, poll_once
from support.large_tables import count_pages
from support.relay_rows import Bot, digest, skill_response

pytestmark = pytest.mark.anyio

INSERT_WAITING = """
with messages as (
    insert into inbound_messages (
        account_id, conversation_key, kakao_payload, normalized, source_event_id, callback_url, callback_expires_at
    )
    select $1, coalesce($2, 'aaa:' || n), '{}', '{}', gen_random_uuid()::text, 'http://127.0.0.1:9/',
           pabal.now() + $4::interval
    from generate_series(1, $3::integer) n
    returning id, account_id, conversation_key, callback_expires_at
)
insert into relay_replies (message_id, account_id, conversation_key, response, answered_at, kept_until, waits_until)
select m.id, m.account_id, m.conversation_key, $5, pabal.now(), pabal.now() + interval '30 minutes',
       m.callback_expires_at
from messages m
"""


async def insert_waiting(
    bot: Bot, number: int, key: str | None = None, life: timedelta = timedelta(seconds=55)
) -> None:
    """Replies that wait, each in a conversation of its own unless `key` names one."""
    if key is None:
        await bot.chat.db.execute(
            """
            insert into conversation_mappings (
              conversation_key, kakao_channel_id, plusfriend_user_key, account_id, state, paired_at
            ) select 'aaa:' || n, 'aaa', n, $1, 'PAIRED', pabal.now() from generate_series(1, $2::integer) n
            """,
            bot.owner.id,
            number,
        )
    await bot.chat.db.execute(INSERT_WAITING, bot.owner.id, key, number, life, json.dumps(skill_response("waits")))


@pytest.fixture
async def bot(bot: Bot, stopped_clock: None, monkeypatch: pytest.MonkeyPatch) -> Bot:
    """A bot that has used up its rate limit. Its requests do not wait for an outcome."""
    del stopped_clock
    monkeypatch.setattr(send, "REPLY_HOLD", 0)
    await bot.chat.db.execute("update accounts set rate_limit_per_minute = $1", RATE_LIMIT)
    for number in range(RATE_LIMIT):
        await bot.send_reply(await bot.insert_message(f"before-{number}"), "hello")
    return bot


async def test_waiting_replies_of_one_account_do_not_delay_those_of_another(bot: Bot) -> None:
    other = await Bot.of(bot.hub, bot.chat, bot.kakao, "other")
    await insert_waiting(bot, CALLBACK_BATCH_SIZE)
    await insert_waiting(other, 1, other.key)

    assert await poll_once(other) == 1


async def test_a_reply_to_an_unpaired_user_takes_nothing_from_the_limit(bot: Bot, travel: Travel) -> None:
    """The reply stays until its callback expires, and each poll would take from the limit for it."""
    gone = await bot.chat.conversation(bot.owner, "gone")
    await insert_waiting(bot, 1, gone)
    await bot.chat.db.execute("update conversation_mappings set state = 'UNPAIRED' where conversation_key = $1", gone)
    await travel(STEP)

    assert await poll_once(bot) == 0
    await bot.send_reply(await bot.insert_message("first"), "hello")


async def test_many_waiting_blocks_do_not_refuse_a_reply_within_the_limit(
    bot: Bot, travel: Travel, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await bot.insert_message("first")
    for text in ("one", "two", "three", "four"):
        await bot.send_block(first, text)
    monkeypatch.setattr(reply, "MAX_WAITING_REPLIES", 1)
    messages = [await bot.insert_message(str(number)) for number in range(3)]
    await travel(STEP)

    async with bot.hub.autocommit() as tx:
        results = await claim_callbacks(tx, [BotReply(digest(bot.owner.token), message) for message in messages])

    assert [*map(type, results)] == [ClaimedCallback, RateLimited, RateLimited]


async def test_repeats_above_the_limit_are_bounded(bot: Bot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply, "MAX_WAITING_REPLIES", 5)
    message = await bot.insert_message("first")
    await bot.send_block(message, "hello")

    for _ in range(4):
        await bot.send_block(message, "hello")

    with pytest.raises(RateLimited):
        await bot.send_block(message, "hello")


async def test_replies_that_no_longer_wait_cost_nothing(bot: Bot, travel: Travel) -> None:
    await insert_waiting(bot, 3000, bot.key)
    await travel(timedelta(seconds=56))
    await bot.chat.db.execute("analyze relay_replies")

    pages, _ = await count_pages(bot.chat.db, waiting.Q.list_waiting_replies, {"urgent": "5 s", "limit": 100})

    assert pages < 20
