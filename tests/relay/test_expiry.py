"""Messages to an offline bot expire after their queue life, and the user gets one text about it."""

import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from uuid import UUID

import pytest

from pabal.maintenance import build_chores
from pabal.relay.delivery.lane import LANE
from pabal.relay.reply.stall import build_stall_body, claim_expiring_callbacks
from pabal.relay.webhook.skill_response import ChatLanguage, chat_texts
from support.relay_rows import Bot, skill_response

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]
QUEUE_LIFE = timedelta(minutes=15)
EXPIRED_TEXT = chat_texts("ko").expired


async def expire(bot: Bot, language: ChatLanguage = "ko") -> int:
    async with bot.hub.transaction() as tx:
        return await LANE.expire(tx, 100, language)


async def claim(bot: Bot) -> list[UUID]:
    async with bot.hub.autocommit() as tx:
        messages = await LANE.claim(tx, 10, timedelta(minutes=1), "poll:tester", bot.owner.id)
    return [message.id for message in messages]


async def kept_texts(bot: Bot) -> list[str]:
    rows = await bot.chat.db.fetch("select response from relay_replies where response is not null order by answered_at")
    return [json.loads(row["response"])["template"]["outputs"][0]["simpleText"]["text"] for row in rows]


async def test_an_undelivered_message_is_reported_once_with_the_next_reply(bot: Bot, travel: Travel) -> None:
    message = await bot.insert_message("first")
    await travel(QUEUE_LIFE)

    assert await expire(bot) == 1

    assert await bot.chat.status(message) == ("EXPIRED", "queue_life")
    assert await bot.chat.state(message) == "late"
    second, third = await bot.insert_message("second"), await bot.insert_message("third")
    await bot.send_reply(second, "awake")
    await bot.send_reply(third, "still awake")
    assert bot.kakao.texts("first") == []
    assert bot.kakao.texts("second") == [[EXPIRED_TEXT, "awake"]]
    assert bot.kakao.texts("third") == [["still awake"]]


async def test_the_report_uses_the_chat_language(bot: Bot, travel: Travel) -> None:
    await bot.insert_message("first")
    await travel(QUEUE_LIFE)

    await expire(bot, "en")

    assert await kept_texts(bot) == [chat_texts("en").expired]


async def test_the_report_follows_a_stall(bot: Bot, travel: Travel) -> None:
    message = await bot.insert_message("first")
    await travel(timedelta(seconds=51))
    async with bot.hub.autocommit() as tx:
        [expiring] = await claim_expiring_callbacks(tx, timedelta(seconds=50))
    await bot.hub.relay.callbacks.send(expiring.callback, build_stall_body(expiring, chat_texts("ko")))
    await travel(QUEUE_LIFE)

    await expire(bot)

    row = await bot.chat.reply(message)
    assert row
    assert (row["spent_by"], row["outcome"], row["state"]) == ("hub", "sent", "late")
    assert row["kept_until"] - row["answered_at"] == timedelta(minutes=30)
    await bot.send_reply(await bot.insert_message("second"), "awake")
    assert bot.kakao.texts("first") == [[chat_texts("ko").still_working]]
    assert bot.kakao.texts("second") == [[EXPIRED_TEXT, "awake"]]


async def test_many_expired_messages_are_reported_once(bot: Bot, travel: Travel) -> None:
    for name in ("one", "two"):
        await bot.insert_message(name)
    await travel(timedelta(minutes=5))
    await bot.insert_message("three")
    await travel(timedelta(minutes=10))
    assert await expire(bot) == 2
    await travel(timedelta(minutes=5))
    assert await expire(bot) == 1
    assert await kept_texts(bot) == [EXPIRED_TEXT]

    await bot.send_reply(await bot.insert_message("four"), "awake")
    await bot.insert_message("five")
    await travel(QUEUE_LIFE)
    await expire(bot)

    assert bot.kakao.texts("four") == [[EXPIRED_TEXT, "awake"]]
    assert await kept_texts(bot) == [EXPIRED_TEXT, "awake", EXPIRED_TEXT]


async def test_a_delivered_message_that_expires_is_not_reported(bot: Bot, travel: Travel) -> None:
    message = await bot.insert_message("first")
    assert await claim(bot) == [message]
    await travel(QUEUE_LIFE)

    assert await expire(bot) == 1

    assert await bot.chat.status(message) == ("EXPIRED", "queue_life")
    assert await kept_texts(bot) == []


@pytest.mark.parametrize("state", ["UNPAIRED", "BLOCKED"])
async def test_an_unpaired_user_gets_no_report(bot: Bot, travel: Travel, state: str) -> None:
    await bot.insert_message("first")
    await bot.chat.db.execute("update conversation_mappings set state = $1", state)
    await travel(QUEUE_LIFE)

    assert await expire(bot) == 1

    assert await kept_texts(bot) == []


async def test_a_user_of_another_bot_gets_no_report(bot: Bot, travel: Travel) -> None:
    await bot.insert_message("first")
    await bot.chat.conversation(await bot.chat.owner())
    await travel(QUEUE_LIFE)

    assert await expire(bot) == 1

    assert await kept_texts(bot) == []


async def test_an_existing_late_reply_is_not_replaced(bot: Bot, travel: Travel) -> None:
    message = await bot.send_late_reply("late")
    await bot.chat.db.execute(
        "update inbound_messages set status = 'QUEUED', delivery_count = 0 where id = $1", message
    )
    await travel(QUEUE_LIFE)

    assert await expire(bot) == 1

    assert await kept_texts(bot) == ["late"]


async def test_a_live_callback_is_spent_on_the_report(bot: Bot, travel: Travel) -> None:
    message = await bot.insert_message("first")
    await bot.chat.db.execute("update inbound_messages set expires_at = pabal.now() + interval '10 seconds'")
    await travel(timedelta(seconds=11))
    assert await expire(bot) == 1
    assert await bot.chat.reply(message) is None

    await travel(timedelta(seconds=40))
    async with bot.hub.autocommit() as tx:
        [expiring] = await claim_expiring_callbacks(tx, timedelta(seconds=50))
    await bot.hub.relay.callbacks.send(expiring.callback, build_stall_body(expiring, chat_texts("ko")))

    assert bot.kakao.responses("first") == [skill_response(EXPIRED_TEXT)]


async def test_the_chore_counts_expired_messages(bot: Bot, travel: Travel) -> None:
    for name in ("one", "two"):
        await bot.insert_message(name)
    await travel(QUEUE_LIFE)
    hub = bot.hub
    [chore] = [chore for chore in build_chores(hub.settings, hub.relay.metrics) if chore.name == "expire messages"]

    async with hub.transaction() as tx:
        assert await chore.run(tx, 100) == 2

    assert b"relay_message_expired_total 2.0" in hub.metrics.render()
