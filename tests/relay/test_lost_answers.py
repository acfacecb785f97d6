"""The answer to a COMMIT is lost on the wire: no reply is lost, and none is posted twice."""

import asyncio
import gc
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

import httpx2
import pytest

from pabal.core.errors import CallbackExpired, CallbackUnconfirmed, Unavailable
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.relay.reply import callback, recorded, reply, send, stall
from pabal.relay.reply.callback import rescue_lost_callbacks
from pabal.relay.reply.send import DeliveredReply, KeptReply
from pabal.relay.webhook import receive
from pabal.settings import Settings
from relay.skills import send_message
from relay.test_handover import warm_stream
from relay.test_stall import STALL_AFTER, STALL_TEXT, Travel, stall_worker
from support.answer_loss import AnswerLossProxy, losing_answers
from support.fake_kakao import kakao_response
from support.receiver import respond_after
from support.relay_rows import Bot, Chat
from support.server import serve_hub
from support.wait import wait_until

pytestmark = pytest.mark.anyio

CLAIM, CONFIRM, CLAIM_EXPIRING = reply.Q.claim_callbacks, callback.Q.confirm_claims, stall.Q.claim_expiring_callbacks
KEEP_FURTHER = recorded.Q.keep_further_replies
ALWAYS = 1000


@pytest.fixture
async def lossy_proxy(database_urls: DatabaseUrls) -> AsyncGenerator[tuple[AnswerLossProxy, DatabaseUrls]]:
    async with losing_answers(database_urls.main) as (proxy, url):
        yield proxy, DatabaseUrls(url, database_urls.direct)


@pytest.fixture
async def hub(lossy_proxy: tuple[AnswerLossProxy, DatabaseUrls], settings: Settings) -> AsyncGenerator[Hub]:
    async with open_hub(settings, lossy_proxy[1]) as running_hub:
        yield running_hub


@pytest.fixture(autouse=True)
def _long_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine must not end the wait for an outcome."""
    monkeypatch.setattr(send, "REPLY_HOLD", 60.0)
    monkeypatch.setattr(send, "REQUEST_TIMEOUT", 60.0)


@pytest.fixture
def proxy(lossy_proxy: tuple[AnswerLossProxy, DatabaseUrls]) -> AnswerLossProxy:
    return lossy_proxy[0]


async def test_a_claimed_callback_is_posted_although_the_answer_to_its_commit_was_lost(
    bot: Bot, proxy: AnswerLossProxy
) -> None:
    message = await bot.insert_message("first")
    proxy.lose_answers(CLAIM)

    delivered = await bot.send_reply(message, "hello")

    row = await bot.chat.reply(message)
    assert row
    assert (proxy.lost, bot.kakao.texts("first")) == (1, [["hello"]])
    assert (row["state"], row["id"]) == ("sent", delivered.reply_id)


async def test_many_replies_survive_the_loss_of_several_answers(bot: Bot, proxy: AnswerLossProxy) -> None:
    names = [str(number) for number in range(11)]
    messages = [await bot.insert_message(name) for name in names]
    proxy.lose_answers(CLAIM, 3)
    proxy.lose_answers(CONFIRM, 2)

    await asyncio.gather(*(bot.send_reply(message, "hello") for message in messages))

    assert proxy.lost >= 3
    assert [bot.kakao.texts(name) for name in names] == [[["hello"]]] * 11
    assert {await bot.chat.state(message) for message in messages} == {"sent"}


async def test_a_claim_that_did_not_reach_the_server_is_made_again(bot: Bot, proxy: AnswerLossProxy) -> None:
    message = await bot.insert_message("first")
    proxy.lose_statement(CLAIM)

    await bot.send_reply(message, "hello")

    assert (proxy.lost, bot.kakao.texts("first")) == (1, [["hello"]])


async def test_late_replies_go_along_although_the_answer_was_lost(bot: Bot, proxy: AnswerLossProxy) -> None:
    await bot.send_late_reply("late")
    message = await bot.insert_message("first")
    proxy.lose_answers(CLAIM)

    await bot.send_reply(message, "hello")

    assert bot.kakao.texts("first") == [["late", "hello"]]


async def test_joined_blocks_are_posted_once_although_the_answer_was_lost(bot: Bot, proxy: AnswerLossProxy) -> None:
    message = await bot.insert_message("first")
    proxy.lose_answers(CLAIM)

    results = await asyncio.gather(bot.send_block(message, "one"), bot.send_block(message, "two"))

    assert bot.kakao.texts("first") == [["one", "two"]]
    assert [*map(type, results)] == [DeliveredReply, DeliveredReply]


async def test_a_further_block_is_kept_once_although_the_answer_was_lost(bot: Bot, proxy: AnswerLossProxy) -> None:
    first, second = await bot.insert_message("first"), await bot.insert_message("second")
    await bot.send_reply(first, "one")
    proxy.lose_answers(KEEP_FURTHER)

    assert isinstance(await bot.send_block(first, "two"), KeptReply)

    await bot.send_reply(second, "now")
    assert (proxy.lost, bot.kakao.texts("second")) == (1, [["two", "now"]])


async def test_a_reply_that_is_given_up_after_its_client_left_is_not_reported_as_unhandled(
    bot: Bot, proxy: AnswerLossProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database stays away for longer than a claim can be confirmed, as during a fail-over."""
    monkeypatch.setattr(send, "REPLY_HOLD", 0.01)
    monkeypatch.setattr(send, "CONFIRM_WINDOW", timedelta(0))
    unhandled: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    message = await bot.insert_message("first")
    proxy.lose_answers(CLAIM)
    proxy.lose_answers(CONFIRM, ALWAYS)

    with pytest.raises(Unavailable):
        await bot.send_reply(message, "hello")
    await wait_until(lambda: not bot.hub.relay.replies._in_flight)
    gc.collect()

    assert unhandled == []


async def test_a_request_is_not_held_longer_than_its_client_waits(
    bot: Bot, proxy: AnswerLossProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sending goes on. The client's repeat gets its outcome."""
    monkeypatch.setattr(send, "REPLY_HOLD", 0.01)
    message = await bot.insert_message("first")
    proxy.lose_answers(CLAIM)
    proxy.lose_answers(CONFIRM, ALWAYS)
    with pytest.raises(Unavailable):
        await bot.send_reply(message, "hello")

    proxy.lose_answers(CONFIRM, 0)
    monkeypatch.setattr(send, "REPLY_HOLD", 60.0)
    repeated = await bot.send_reply(message, "hello")

    row = await bot.chat.reply(message)
    assert row
    assert (bot.kakao.texts("first"), row["id"]) == ([["hello"]], repeated.reply_id)


async def test_a_request_whose_claim_is_slow_is_answered_before_its_client_gives_up(
    bot: Bot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sending goes on. The client's repeat gets its outcome."""
    monkeypatch.setattr(send, "REQUEST_TIMEOUT", 0.5)
    message = await bot.insert_message("first")
    async with asyncio.timeout(10), bot.chat.db.transaction():
        await bot.chat.db.execute("select from inbound_messages where id = $1 for update", message)
        with pytest.raises(CallbackUnconfirmed):
            await bot.send_reply(message, "hello")

    monkeypatch.setattr(send, "REQUEST_TIMEOUT", 60.0)
    await bot.send_reply(message, "hello")
    assert bot.kakao.texts("first") == [["hello"]]


async def test_a_reply_that_is_confirmed_too_late_is_kept_and_not_posted(
    bot: Bot, proxy: AnswerLossProxy, travel: Travel
) -> None:
    message = await bot.insert_message("first")
    proxy.lose_answers(CLAIM)
    proxy.lose_answers(CONFIRM, ALWAYS)
    sending = asyncio.create_task(bot.send_reply(message, "hello"))
    await wait_until(lambda: proxy.lost > 1)
    await travel(callback.CONFIRM_WINDOW)
    proxy.lose_answers(CONFIRM, 0)

    with pytest.raises(CallbackExpired):
        await sending

    assert (bot.kakao.posts, await bot.chat.state(message)) == (0, "late")


async def test_no_reply_is_posted_after_its_rescue(bot: Bot, proxy: AnswerLossProxy, travel: Travel) -> None:
    message = await bot.insert_message("first")
    proxy.lose_answers(CLAIM)
    proxy.lose_answers(CONFIRM, ALWAYS)
    sending = asyncio.create_task(bot.send_reply(message, "hello"))
    await wait_until(lambda: proxy.lost > 1)
    await travel(callback.SENDING_TIMEOUT + timedelta(seconds=1))
    async with bot.hub.autocommit() as tx:
        assert await rescue_lost_callbacks(tx, 10) == 1
    proxy.lose_answers(CONFIRM, 0)

    with pytest.raises(CallbackUnconfirmed):
        await sending

    assert (bot.kakao.posts, await bot.chat.state(message)) == (0, "unknown")


async def test_a_repeat_in_another_process_waits_and_gets_the_first_answer(
    bot: Bot, settings: Settings, database_urls: DatabaseUrls
) -> None:
    respond = asyncio.Event()
    bot.kakao.responder = respond_after(respond, kakao_response("SUCCESS"))
    message = await bot.insert_message("first")
    async with open_hub(settings, database_urls) as other_hub:
        other = Bot(other_hub, bot.chat, bot.kakao, bot.owner, bot.key)
        first = asyncio.create_task(bot.send_reply(message, "hello"))
        await bot.kakao.receiver.wait_for_requests(1)
        repeats = [asyncio.create_task(sender.send_reply(message, "hello")) for sender in (bot, other)]
        respond.set()
        results = await asyncio.gather(first, *repeats)

    assert [result.reply_id for result in results] == [results[0].reply_id] * 3
    assert bot.kakao.texts("first") == [["hello"]]


async def test_a_repeat_without_an_outcome_is_unknown_and_not_kept(bot: Bot, monkeypatch: pytest.MonkeyPatch) -> None:
    respond = asyncio.Event()
    bot.kakao.responder = respond_after(respond, kakao_response("SUCCESS"))
    message = await bot.insert_message("first")
    first = asyncio.create_task(bot.send_reply(message, "hello"))
    await bot.kakao.receiver.wait_for_requests(1)
    monkeypatch.setattr(send, "REPLY_HOLD", 0)

    with pytest.raises(CallbackUnconfirmed):
        await bot.send_reply(message, "hello")

    respond.set()
    assert isinstance(await first, DeliveredReply)
    assert await bot.chat.db.fetchval("select count(*) from relay_replies") == 1


async def test_the_stall_is_posted_although_the_answer_to_its_commit_was_lost(
    bot: Bot, proxy: AnswerLossProxy, travel: Travel
) -> None:
    message = await bot.insert_message("first")
    await travel(STALL_AFTER)
    proxy.lose_answers(CLAIM_EXPIRING)
    async with stall_worker(bot.hub):
        await bot.kakao.receiver.wait_for_requests(1)

    row = await bot.chat.reply(message)
    assert row
    assert (proxy.lost, bot.kakao.texts("first")) == (1, [[STALL_TEXT]])
    assert (row["spent_by"], row["outcome"]) == ("hub", "sent")


async def test_a_message_stored_without_an_answer_is_delivered_before_the_next_one(
    hub: Hub, chat: Chat, proxy: AnswerLossProxy
) -> None:
    """The statement leased it to the stream, which did not learn of it."""
    owner = await chat.owner()
    await chat.conversation(owner)
    async with (
        serve_hub(hub) as address,
        httpx2.AsyncClient(base_url=address, timeout=30) as web,
        warm_stream(address, web, chat, owner.token) as client,
    ):
        proxy.lose_answers(receive.Q.receive_messages)
        await send_message(web, "second")
        await send_message(web, "third")
        texts = [(await client.next_message())["normalized"]["text"] for _ in range(2)]

    assert (proxy.lost, texts) == (1, ["second", "third"])
