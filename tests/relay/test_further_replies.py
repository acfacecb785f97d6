"""Further blocks of an answer are kept or go along with the first; none is dropped, and none delays the first."""

import asyncio
import json
from hashlib import sha256

import pytest

from pabal.core.errors import AlreadyReplied, CallbackFailed
from pabal.core.ids import new_id
from pabal.relay.reply import recorded
from pabal.relay.reply.callback import ClaimedCallback
from pabal.relay.reply.recorded import ReplyToAnswered, keep_further_replies
from pabal.relay.reply.reply import BotReply, build_callback_body, claim_callbacks, encode_skill_response
from pabal.relay.reply.send import DeliveredReply, KeptReply
from pabal.relay.webhook.skill_response import KOREAN_TEXTS
from support.fake_kakao import kakao_response
from support.receiver import respond_after
from support.relay_rows import Bot, digest, skill_response
from support.wait import wait_for_lock_of

pytestmark = pytest.mark.anyio


async def test_a_further_block_is_kept_and_shown_with_the_next_reply(bot: Bot) -> None:
    first, second = await bot.insert_message("first"), await bot.insert_message("second")
    await bot.send_reply(first, "one")

    kept = [await bot.send_block(first, text) for text in ("two", "three")]
    await bot.send_reply(second, "now")

    assert [*map(type, kept)] == [KeptReply, KeptReply]
    assert bot.kakao.texts("first") == [["one"]]
    assert bot.kakao.texts("second") == [["two", "three", "now"]]


async def test_a_further_block_does_not_wait_for_the_first(bot: Bot) -> None:
    respond = asyncio.Event()
    bot.kakao.responder = respond_after(respond, kakao_response("SUCCESS"))
    message = await bot.insert_message("first")
    first = asyncio.create_task(bot.send_reply(message, "one"))
    await bot.kakao.receiver.wait_for_requests(1)

    assert isinstance(await bot.send_block(message, "two"), KeptReply)

    respond.set()
    await first


async def test_the_same_block_again_gets_the_answer_of_the_first(bot: Bot) -> None:
    message = await bot.insert_message("first")
    delivered = await bot.send_block(message, "one")
    kept = await bot.send_block(message, "two")

    assert await bot.send_block(message, "one") == delivered
    assert await bot.send_block(message, "two") == kept
    assert await bot.chat.db.fetchval("select count(*) from relay_replies") == 2


async def test_concurrent_repeats_of_a_block_are_kept_once(bot: Bot) -> None:
    message = await bot.insert_message("first")
    await bot.send_reply(message, "one")

    results = await asyncio.gather(*(bot.send_block(message, "two") for _ in range(20)))

    assert len({result.reply_id for result in results}) == 1
    assert await bot.chat.db.fetchval("select count(*) from relay_replies where continues = $1", message) == 1


async def test_blocks_that_arrive_together_are_joined_up_to_three_bubbles(bot: Bot) -> None:
    message = await bot.insert_message("first")

    results = await asyncio.gather(*(bot.send_block(message, text) for text in ("one", "two", "three", "four")))

    assert [*map(type, results)] == [DeliveredReply, DeliveredReply, DeliveredReply, KeptReply]
    assert bot.kakao.texts("first") == [["one", "two", "three"]]
    assert len({result.reply_id for result in results}) == 4


async def test_a_joined_block_of_a_refused_post_is_kept(bot: Bot) -> None:
    message, second = await bot.insert_message("first"), await bot.insert_message("second")
    bot.kakao.responder = kakao_response("FAIL", "no")
    results = await asyncio.gather(
        bot.send_block(message, "one"), bot.send_block(message, "two"), return_exceptions=True
    )
    bot.kakao.responder = kakao_response("SUCCESS")
    await bot.send_reply(second, "now")

    assert [*map(type, results)] == [CallbackFailed, KeptReply]
    assert bot.kakao.texts("second") == [["two", "now"]]


async def test_late_replies_leave_room_for_joined_blocks(bot: Bot) -> None:
    for text in ("late", "later"):
        await bot.send_late_reply(text)
    message = await bot.insert_message("first")

    await asyncio.gather(bot.send_block(message, "one"), bot.send_block(message, "two"))

    assert bot.kakao.texts("first") == [["late", "one", "two"]]


async def test_a_message_keeps_a_bounded_number_of_blocks(bot: Bot) -> None:
    message = await bot.insert_message("first")
    await bot.send_reply(message, "first")
    for number in range(recorded.MAX_FURTHER_REPLIES):
        await bot.send_block(message, f"block {number}")

    with pytest.raises(AlreadyReplied):
        await bot.send_block(message, "one too many")
    assert isinstance(await bot.send_block(message, "block 0"), KeptReply)


async def test_concurrent_blocks_do_not_pass_the_limit_of_a_message(bot: Bot) -> None:
    message = await bot.insert_message("first")
    await bot.send_reply(message, "first")

    def block(text: str) -> ReplyToAnswered:
        response = skill_response(text)
        body = encode_skill_response(response)
        return ReplyToAnswered(new_id(), bot.owner.id, message, sha256(body).digest(), body, response)

    async def keep_theirs() -> int:
        blocks = [block(f"theirs {number}") for number in range(recorded.MAX_FURTHER_REPLIES)]
        async with bot.hub.autocommit() as tx:
            return [*await keep_further_replies(tx, blocks)].count(True)

    async with bot.hub.transaction() as tx:
        assert await keep_further_replies(tx, [block("ours")]) == [True]
        theirs = asyncio.create_task(keep_theirs())
        await wait_for_lock_of(bot.chat.db, theirs)

    assert await theirs == recorded.MAX_FURTHER_REPLIES - 1


async def test_a_block_of_an_account_does_not_reach_the_message_of_another(bot: Bot) -> None:
    """The claim refuses it before a block could be kept."""
    other = await Bot.of(bot.hub, bot.chat, bot.kakao, "another")
    message = await bot.insert_message("first")
    await bot.send_reply(message, "one")

    result = await asyncio.gather(other.send_block(message, "two"), return_exceptions=True)

    assert [type(error).__name__ for error in result] == ["MessageNotFound"]
    assert await bot.chat.db.fetchval("select count(*) from relay_replies") == 1


@pytest.mark.parametrize("intruder", ["another account", "another token of the account", "another conversation"])
async def test_another_reply_in_the_batch_does_not_make_a_post_too_large(bot: Bot, intruder: str) -> None:
    """Kakao refuses more than three outputs."""
    await bot.send_late_reply("late", "later")
    message = await bot.insert_message("first")
    tokens = {
        "another account": (await bot.chat.owner()).token,
        "another token of the account": await bot.chat.session(bot.owner.id),
        "another conversation": bot.owner.token,
    }
    key = "channel:another" if intruder == "another conversation" else None
    responses = [skill_response(text) for text in ("zero", "one", "two")]
    replies = [
        BotReply(digest(token), message, conversation, response, encode_skill_response(response))
        for response, token, conversation in zip(
            responses, [tokens[intruder], *[bot.owner.token] * 2], [key, None, None], strict=True
        )
    ]

    async with bot.hub.autocommit() as tx:
        results = await claim_callbacks(tx, replies)

    [body] = [
        build_callback_body(reply, result, KOREAN_TEXTS)
        for reply, result in zip(replies, results, strict=True)
        if isinstance(result, ClaimedCallback)
    ]
    assert len(json.loads(body)["template"]["outputs"]) <= 3
