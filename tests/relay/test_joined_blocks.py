"""Further blocks that arrive while the callback of the first one is being claimed go along with its POST."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from uuid import UUID

import pytest

from pabal.core.errors import CallbackFailed, Invalid, MessageNotFound
from pabal.core.ids import new_id
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.relay.reply import recorded, reply, send
from pabal.relay.reply.callback import ClaimedCallback
from pabal.relay.reply.recorded import (
    BlockToJoin,
    ReplyToAnswered,
    TextPart,
    join_further_replies,
    keep_further_replies,
)
from pabal.relay.reply.reply import BotReply, claim_callbacks, encode_skill_response
from pabal.relay.reply.send import DeliveredReply, KeptReply, ReplyResult
from pabal.settings import Settings
from support.answer_loss import AnswerLossProxy, losing_answers
from support.fake_kakao import kakao_response
from support.relay_rows import Bot, digest, skill_response
from support.wait import wait_until

pytestmark = pytest.mark.anyio

CLAIM, JOIN = reply.Q.claim_callbacks, recorded.Q.join_further_replies


@pytest.fixture(params=[False, True], ids=["plain", "encrypted"])
def settings(settings: Settings, request: pytest.FixtureRequest) -> Settings:
    return settings.model_copy(update={"relay_encrypt_text": request.param})


@pytest.fixture
async def lossy_proxy(database_urls: DatabaseUrls) -> AsyncGenerator[tuple[AnswerLossProxy, DatabaseUrls]]:
    async with losing_answers(database_urls.main) as (proxy, url):
        yield proxy, DatabaseUrls(url, database_urls.direct)


@pytest.fixture
def proxy(lossy_proxy: tuple[AnswerLossProxy, DatabaseUrls]) -> AnswerLossProxy:
    return lossy_proxy[0]


@pytest.fixture
async def hub(lossy_proxy: tuple[AnswerLossProxy, DatabaseUrls], settings: Settings) -> AsyncGenerator[Hub]:
    async with open_hub(settings, lossy_proxy[1]) as running_hub:
        yield running_hub


@pytest.fixture(autouse=True)
def _long_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine must not end a wait."""
    monkeypatch.setattr(send, "REPLY_HOLD", 60.0)
    monkeypatch.setattr(send, "REQUEST_TIMEOUT", 60.0)
    monkeypatch.setattr(send, "JOIN_TIMEOUT", 60.0)


def build_reply(bot: Bot, message: UUID, text: str) -> BotReply:
    response = skill_response(text)
    return BotReply(digest(bot.owner.token), message, None, response, encode_skill_response(response))


@asynccontextmanager
async def during_claim(
    bot: Bot, proxy: AnswerLossProxy, message: UUID, *texts: str
) -> AsyncGenerator["Sequence[asyncio.Task[ReplyResult]]"]:
    """A reply whose claim is held back, and further blocks behind it, whose claims go on after the first one's POST."""
    paused = proxy.pause(CLAIM)
    replies = [asyncio.create_task(bot.send_block(message, texts[0]))]
    await wait_until(lambda: len(paused.waiting) == 1)
    replies += [asyncio.create_task(bot.send_block(message, text)) for text in texts[1:]]
    await asyncio.sleep(0)
    yield replies
    posts = bot.kakao.posts
    paused.resume_first()
    await bot.kakao.receiver.wait_for_requests(posts + 1)
    paused.resume()


async def test_blocks_that_arrive_during_the_claim_are_joined(bot: Bot, proxy: AnswerLossProxy) -> None:
    message, following = await bot.insert_message("first"), await bot.insert_message("second")

    async with during_claim(bot, proxy, message, "one", "two", "two", "three", "four") as replies:
        pass
    one, two, again, three, four = await asyncio.gather(*replies)
    await bot.send_reply(following, "now")

    assert bot.kakao.texts("first") == [["one", "two", "three"]]
    assert bot.kakao.texts("second") == [["four", "now"]]
    assert [type(result) for result in (one, two, three, four)] == [DeliveredReply] * 3 + [KeptReply]
    assert again == two


async def test_late_replies_leave_less_room_for_them(bot: Bot, proxy: AnswerLossProxy) -> None:
    await bot.send_late_reply("late")
    message = await bot.insert_message("first")

    async with during_claim(bot, proxy, message, "one", "two", "three") as replies:
        pass
    await asyncio.gather(*replies)

    assert bot.kakao.texts("first") == [["late", "one", "two"]]


async def test_a_reply_without_further_blocks_has_no_statement_more(bot: Bot, proxy: AnswerLossProxy) -> None:
    message, other = await bot.insert_message("first"), await bot.insert_message("second")
    joins = proxy.pause(JOIN)

    async with during_claim(bot, proxy, message, "one") as replies:
        another = asyncio.create_task(bot.send_block(other, "of another message"))
        await asyncio.sleep(0)
    await asyncio.gather(*replies, another)

    assert not joins.waiting
    assert bot.kakao.texts("first") == [["one"]]


async def test_blocks_of_a_refused_post_are_kept(bot: Bot, proxy: AnswerLossProxy) -> None:
    message, following = await bot.insert_message("first"), await bot.insert_message("second")
    bot.kakao.responder = kakao_response("FAIL", "no")

    async with during_claim(bot, proxy, message, "one", "two") as replies:
        pass
    results = await asyncio.gather(*replies, return_exceptions=True)
    bot.kakao.responder = kakao_response("SUCCESS")
    await bot.send_reply(following, "now")

    assert isinstance(results[0], CallbackFailed)
    assert bot.kakao.texts("second") == [["two", "now"]]


async def test_a_block_goes_along_although_the_answer_to_its_record_was_lost(bot: Bot, proxy: AnswerLossProxy) -> None:
    message, following = await bot.insert_message("first"), await bot.insert_message("second")
    proxy.lose_answers(JOIN)

    async with during_claim(bot, proxy, message, "one", "two") as replies:
        pass
    results = await asyncio.gather(*replies)
    await bot.send_reply(following, "now")

    assert bot.kakao.texts("first") == [["one", "two"]]
    assert bot.kakao.texts("second") == [["now"]]
    assert [*map(type, results)] == [DeliveredReply, DeliveredReply]


async def test_another_account_cannot_add_a_block(bot: Bot, proxy: AnswerLossProxy) -> None:
    message = await bot.insert_message("first")
    intruder = await Bot.of(bot.hub, bot.chat, bot.kakao, "another")

    async with during_claim(bot, proxy, message, "one") as replies:
        other = asyncio.create_task(intruder.send_block(message, "two"))
        await asyncio.sleep(0)

    assert isinstance(await replies[0], DeliveredReply)
    with pytest.raises(MessageNotFound):
        await other
    assert bot.kakao.texts("first") == [["one"]]


async def test_a_block_that_cannot_be_stored_does_not_harm_the_first(
    bot: Bot, proxy: AnswerLossProxy, settings: Settings
) -> None:
    message = await bot.insert_message("first")
    invalid = replace(build_reply(bot, message, "two"), response_json=b'{"version": "2.0", "n": 1e999999}')

    async with during_claim(bot, proxy, message, "one") as replies:
        other = asyncio.create_task(bot.hub.relay.replies.send(invalid))
        await asyncio.sleep(0)

    assert isinstance(await replies[0], DeliveredReply)
    if not settings.relay_encrypt_text:
        with pytest.raises(Invalid):
            await other
        assert bot.kakao.texts("first") == [["one"]]
    await asyncio.gather(other, return_exceptions=True)


async def test_a_block_that_is_kept_already_is_joined_under_the_fence_only(bot: Bot) -> None:
    """Its own request was a moment faster."""
    message = await bot.insert_message("first")
    first, block = build_reply(bot, message, "one"), build_reply(bot, message, "two")
    cipher = bot.hub.relay.cipher
    async with bot.hub.autocommit() as tx:
        [claimed] = await claim_callbacks(tx, [first], cipher=cipher)
        [answered] = await claim_callbacks(tx, [block], cipher=cipher)
        assert isinstance(claimed, ClaimedCallback)
        assert isinstance(answered, ReplyToAnswered)
        assert await keep_further_replies(tx, [answered], cipher) == [True]
        part = TextPart(new_id(), block.response, block.response_json)
        join = BlockToJoin(part, bot.owner.id, message, claimed.fence)

        assert await join_further_replies(tx, [replace(join, fence=new_id())], cipher) == [False]
        assert await join_further_replies(tx, [join], cipher) == [True]
        assert await join_further_replies(tx, [join], cipher) == [False]

    assert await bot.chat.db.fetchval("select shown_with from relay_replies where continues = $1", message) == message
