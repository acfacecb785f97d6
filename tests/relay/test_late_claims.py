"""A callback is posted only while its claim is young: the rescue must not record an outcome before the POST is made."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from uuid import UUID

import pytest
from uuid_utils.compat import uuid7

from pabal.core.errors import CallbackFailed, CallbackUnconfirmed
from pabal.core.ids import id_age, new_id
from pabal.db.pool import ConnectOptions, Database
from pabal.hub import DatabaseUrls
from pabal.outside.kakao import post_kakao_callback
from pabal.relay.reply import callback
from pabal.relay.reply.callback import (
    CONFIRM_WINDOW,
    SENDING_TIMEOUT,
    SENDING_TIMEOUT_ERROR,
    CallbackClaim,
    CallbackSender,
    ClaimedCallback,
    rescue_lost_callbacks,
)
from pabal.relay.reply.reply import BotReply, claim_callbacks, encode_skill_response
from support.fake_kakao import kakao_response
from support.receiver import respond_after
from support.relay_rows import Bot, digest, skill_response
from support.wait import wait_for_lock_of, wait_until

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]
AFTER_RESCUE = SENDING_TIMEOUT + timedelta(seconds=1)


def build_reply(bot: Bot, message: UUID, age: timedelta = timedelta()) -> BotReply:
    """A reply whose claim was made that long ago."""
    fence = uuid7(nanoseconds=time.time_ns() - int(age.total_seconds() * 1e9))
    response = skill_response("an answer")
    token, body = digest(bot.owner.token), encode_skill_response(response)
    return BotReply(token, message, None, response, body, CallbackClaim(new_id(), fence))


async def rescue(bot: Bot) -> int:
    async with bot.hub.autocommit() as tx:
        return await rescue_lost_callbacks(tx, 10)


async def test_a_claim_that_waited_too_long_for_a_lock_is_not_posted(bot: Bot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callback, "CONFIRM_WINDOW", timedelta(seconds=1))
    message = await bot.insert_message("first")
    reply = build_reply(bot, message)
    async with bot.chat.db.transaction():
        await bot.chat.db.execute("select from inbound_messages where id = $1 for update", message)
        sending = asyncio.create_task(bot.hub.relay.replies.send(reply))
        await wait_for_lock_of(bot.chat.db, sending)
        await wait_until(lambda: id_age(reply.claim.fence) >= callback.CONFIRM_WINDOW)

    with pytest.raises(CallbackFailed, match="shown with the next one"):
        await sending

    row = await bot.chat.reply(message)
    assert row
    assert (row["state"], row["error"], bot.kakao.posts) == ("late", callback.TOO_LATE_ERROR, 0)


async def test_a_process_that_was_stopped_between_the_claim_and_the_post_keeps_the_reply(bot: Bot) -> None:
    message = await bot.insert_message("first")

    with pytest.raises(CallbackFailed, match="shown with the next one"):
        await bot.hub.relay.replies.send(build_reply(bot, message, age=CONFIRM_WINDOW))

    assert (await bot.chat.state(message), bot.kakao.posts) == ("late", 0)


async def test_a_process_that_was_stopped_until_the_rescue_posts_nothing_and_says_unknown(
    bot: Bot, travel: Travel
) -> None:
    message = await bot.insert_message("first")
    async with bot.hub.autocommit() as tx:
        [claimed] = await claim_callbacks(tx, [build_reply(bot, message, age=AFTER_RESCUE)])
    assert isinstance(claimed, ClaimedCallback)
    await travel(AFTER_RESCUE)
    assert await rescue(bot) == 1

    result, _ = await bot.hub.relay.callbacks.send(claimed, b"{}")

    assert (result.outcome, result.error, bot.kakao.posts) == ("unknown", SENDING_TIMEOUT_ERROR, 0)
    assert (await bot.chat.state(message), await bot.chat.failures()) == ("unknown", ["unknown"])


async def test_a_post_that_ends_after_the_rescue_is_unknown_to_the_bot_as_well(bot: Bot, travel: Travel) -> None:
    respond = asyncio.Event()
    bot.kakao.responder = respond_after(respond, kakao_response("SUCCESS"))
    message = await bot.insert_message("first")
    sending = asyncio.create_task(bot.send_reply(message, "hello"))
    await bot.kakao.receiver.wait_for_requests(1)
    await travel(AFTER_RESCUE)
    assert await rescue(bot) == 1
    respond.set()

    with pytest.raises(CallbackUnconfirmed):
        await sending

    assert (await bot.chat.state(message), bot.kakao.posts) == ("unknown", 1)


async def test_an_outcome_is_recorded_once_the_database_is_back(
    bot: Bot, database_urls: DatabaseUrls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callback, "SETTLE_RETRY_DELAY", 0)
    message = await bot.insert_message("first")
    async with bot.hub.autocommit() as tx:
        [claimed] = await claim_callbacks(tx, [build_reply(bot, message)])
    assert isinstance(claimed, ClaimedCallback)
    away = Database(ConnectOptions(database_urls.main))
    sender = CallbackSender(away, partial(post_kakao_callback, bot.hub.http_client), bot.hub.relay.metrics)

    sending = asyncio.create_task(sender.send(claimed, encode_skill_response(skill_response("an answer"))))
    await bot.kakao.receiver.wait_for_requests(1)
    async with away:  # each attempt before failed at once
        await sending

    assert await bot.chat.state(message) == "sent"
