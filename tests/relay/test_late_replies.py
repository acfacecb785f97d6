"""A late reply is shown once, before the next response to the user."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from pabal.core.errors import CallbackExpired, CallbackFailed, CallbackUnconfirmed
from pabal.relay.reply.recorded import ReplyToAnswered
from pabal.relay.reply.reply import BotReply, add_outputs, claim_callbacks, claim_late_outputs, encode_skill_response
from pabal.relay.reply.send import KeptReply
from pabal.relay.webhook.receive import ReceiveResult, save_first_response
from support.fake_kakao import kakao_response
from support.receiver import close_connection
from support.relay_rows import Bot, digest, skill_response
from support.wait import wait_for_lock_of

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]


async def waiting_texts(bot: Bot) -> list[str]:
    """Texts of late replies that were not shown yet."""
    rows = await bot.chat.db.fetch(
        "select response from relay_replies where kept_until > pabal.now() and shown_at is null order by answered_at"
    )
    return [json.loads(row["response"])["template"]["outputs"][0]["simpleText"]["text"] for row in rows]


async def claim_texts(bot: Bot, max_outputs: int, key: str | None = None) -> list[str]:
    """Late outputs for an immediate response."""
    async with bot.hub.transaction() as tx:
        late = await claim_late_outputs(tx, key or bot.key, max_outputs, None)
    return [output["simpleText"]["text"] for output in late.outputs]


async def test_a_late_reply_is_shown_once_before_the_next_reply(bot: Bot) -> None:
    first = await bot.send_late_reply("late")
    second, third = await bot.insert_message("second"), await bot.insert_message("third")

    await bot.send_reply(second, "now")
    await bot.send_reply(third, "later")

    assert bot.kakao.texts("second") == [["late", "now"]]
    assert bot.kakao.texts("third") == [["later"]]
    row = await bot.chat.reply(first)
    assert row
    assert (row["state"], row["shown_with"]) == ("late", second)
    assert isinstance(await bot.send_block(first, "again"), KeptReply)


async def test_late_replies_are_shown_oldest_first_as_far_as_they_fit(bot: Bot) -> None:
    for text in ("one", "two", "three"):
        await bot.send_late_reply(text)
    first, second = await bot.insert_message("first"), await bot.insert_message("second")

    await bot.send_reply(first, "now")
    assert bot.kakao.texts("first") == [["one", "two", "now"]]
    assert await waiting_texts(bot) == ["three"]

    await bot.send_reply(second, "a", "b")
    assert bot.kakao.texts("second") == [["three", "a", "b"]]


async def test_a_late_reply_that_does_not_fit_waits_and_smaller_ones_pass(bot: Bot) -> None:
    await bot.send_late_reply("large", "and", "larger")
    await bot.send_late_reply("small")
    first, second = await bot.insert_message("first"), await bot.insert_message("second")

    await bot.send_reply(first, "now")
    await bot.send_reply(second, "a", "b", "c")

    assert bot.kakao.texts("first") == [["small", "now"]]
    assert bot.kakao.texts("second") == [["a", "b", "c"]]
    assert await waiting_texts(bot) == ["large"]


async def test_late_replies_of_a_refused_post_wait_again(bot: Bot) -> None:
    await bot.send_late_reply("late")
    first, second = await bot.insert_message("first"), await bot.insert_message("second")
    bot.kakao.responder = kakao_response("FAIL")
    with pytest.raises(CallbackFailed):
        await bot.send_reply(first, "refused")
    assert await waiting_texts(bot) == ["late"]

    bot.kakao.responder = kakao_response("SUCCESS")
    await bot.send_reply(second, "now")

    assert bot.kakao.texts("second") == [["late", "now"]]
    assert await waiting_texts(bot) == []


async def test_late_replies_of_an_unknown_post_are_not_shown_again(bot: Bot) -> None:
    await bot.send_late_reply("late")
    first, second = await bot.insert_message("first"), await bot.insert_message("second")
    bot.kakao.responder = close_connection
    with pytest.raises(CallbackUnconfirmed):
        await bot.send_reply(first, "perhaps")

    bot.kakao.responder = kakao_response("SUCCESS")
    await bot.send_reply(second, "now")

    assert bot.kakao.texts("second") == [["now"]]


async def test_a_late_reply_expires_after_half_an_hour(bot: Bot, travel: Travel) -> None:
    await bot.send_late_reply("late")
    await travel(timedelta(minutes=30))
    message = await bot.insert_message("first")

    await bot.send_reply(message, "now")

    assert bot.kakao.texts("first") == [["now"]]
    assert await claim_texts(bot, 3) == []


async def test_a_late_reply_is_shown_only_to_its_user_by_the_current_bot(bot: Bot) -> None:
    await bot.send_late_reply("late")
    other = await Bot.of(bot.hub, bot.chat, bot.kakao, "another")
    theirs = await other.insert_message("theirs")
    successor = await Bot.of(bot.hub, bot.chat, bot.kakao)  # the user pairs with another bot
    ours = await successor.insert_message("ours")

    await other.send_reply(theirs, "for another bot")
    await successor.send_reply(ours, "from another bot")

    assert bot.kakao.texts("theirs") == [["for another bot"]]
    assert bot.kakao.texts("ours") == [["from another bot"]]
    assert await claim_texts(bot, 3) == []


async def test_concurrent_replies_show_a_late_reply_once(bot: Bot) -> None:
    await bot.send_late_reply("late")
    names = [str(n) for n in range(20)]
    messages = [await bot.insert_message(name) for name in names]

    await asyncio.gather(*(bot.send_reply(message, "now") for message in messages))

    texts = [text for name in names for text in bot.kakao.texts(name)]
    assert sorted(texts) == [["late", "now"], *[["now"]] * 19]


async def test_a_locked_late_reply_is_skipped(bot: Bot) -> None:
    await bot.send_late_reply("late")
    message = await bot.insert_message("first")
    async with bot.hub.transaction() as tx, asyncio.timeout(10):
        assert (await claim_late_outputs(tx, bot.key, 3, None)).outputs
        await bot.send_reply(message, "now")

    assert bot.kakao.texts("first") == [["now"]]


async def test_replies_wait_for_an_immediate_response_that_shows_a_late_one(bot: Bot) -> None:
    """Both lock the message before the late reply. In another order, PostgreSQL would end one of them."""
    first = await bot.send_late_reply("late")
    second = await bot.chat.message(bot.owner, bot.key, None)
    received = ReceiveResult("PAIRED", bot.owner.id, False, second, None, None, False)
    response = skill_response("late")
    replies = [
        BotReply(digest(bot.owner.token), message, None, response, encode_skill_response(response))
        for message in (first, second)
    ]

    async def claim() -> Sequence[object]:
        async with bot.hub.autocommit() as tx:
            return await claim_callbacks(tx, replies)

    async with bot.hub.transaction() as tx:
        assert (await claim_late_outputs(tx, bot.key, 2, second)).outputs
        claiming = asyncio.create_task(claim())
        await wait_for_lock_of(bot.chat.db, claiming)
        await save_first_response(tx, received, response)

    assert [*map(type, await claiming)] == [ReplyToAnswered, CallbackExpired]


async def test_an_unsent_reply_is_kept_and_its_callback_stays_unspent(bot: Bot) -> None:
    await bot.send_late_reply("late")
    message = await bot.chat.message(bot.owner, bot.key, "http://127.0.0.1:1/nobody")

    with pytest.raises(CallbackFailed, match="connection failed; the reply is kept"):
        await bot.send_reply(message, "unlucky")

    row = await bot.chat.reply(message)
    assert row
    assert (row["state"], row["spent_by"], row["error"]) == ("late", None, "connection failed")
    assert await waiting_texts(bot) == ["late", "unlucky"]
    assert await bot.chat.failures() == ["unsent"]
    await bot.send_reply(await bot.insert_message("next"), "now")
    assert bot.kakao.texts("next") == [["late", "unlucky", "now"]]


async def test_an_immediate_response_shows_a_late_reply_once(bot: Bot) -> None:
    first = await bot.send_late_reply("one", "two")
    await bot.send_late_reply("three")

    assert await claim_texts(bot, 0) == []
    assert await claim_texts(bot, 1) == ["three"]
    assert await claim_texts(bot, 2) == ["one", "two"]
    assert await claim_texts(bot, 3) == []
    row = await bot.chat.reply(first)
    assert row
    assert row["shown_at"] is not None


async def test_an_unpaired_user_is_shown_no_late_reply(bot: Bot) -> None:
    await bot.send_late_reply("late")
    await bot.chat.db.execute("update conversation_mappings set state = 'UNPAIRED'")

    assert await claim_texts(bot, 3) == []


@pytest.mark.parametrize(
    "response", [skill_response("now"), skill_response("now") | {"data": {"n": 10**30}}, {"version": "2.0"}]
)
def test_prepending_outputs_keeps_the_rest_of_the_response(response: dict[str, Any]) -> None:
    before = json.dumps(response)
    [late] = skill_response("late")["template"]["outputs"]

    joined = json.loads(encode_skill_response(add_outputs(response, before=[late])))

    own = json.loads(before).get("template", {}).get("outputs", [])
    assert joined["template"]["outputs"] == [late, *own]
    assert {name: joined[name] for name in response if name != "template"} == {
        name: value for name, value in json.loads(before).items() if name != "template"
    }
    assert json.dumps(response) == before
    assert add_outputs(response) is response
