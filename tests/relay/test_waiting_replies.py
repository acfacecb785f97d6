"""A reply above its account's rate limit is stored and waits; none is lost."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from uuid import UUID

import pytest

from pabal.core.errors import CallbackExpired, RateLimited
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.hub_workers import build_workers
from pabal.relay.reply import callback, reply, send, waiting
from pabal.relay.reply.send import DeliveredReply, KeptReply
from pabal.relay.reply.waiting import WaitingReplyWorker, claim_waiting_replies, prepare_waiting_claims
from pabal.relay.webhook.skill_response import KOREAN_TEXTS
from pabal.settings import Settings
from relay.test_stall import STALL_AFTER, Travel
from relay.test_stall import poll_once as poll_stall
from support.answer_loss import losing_answers
from support.fake_kakao import kakao_response
from support.receiver import respond_after
from support.relay_rows import Bot
from support.wait import wait_until

pytestmark = pytest.mark.anyio

RATE_LIMIT = 2
STEP = timedelta(seconds=30)
"""After this, a limit of two per minute allows one more."""


@pytest.fixture
async def bot(bot: Bot, stopped_clock: None) -> Bot:
    """A bot that has used up its rate limit."""
    del stopped_clock
    await bot.chat.db.execute("update accounts set rate_limit_per_minute = $1", RATE_LIMIT)
    for number in range(RATE_LIMIT):
        await bot.send_reply(await bot.insert_message(f"before-{number}"), "hello")
    bot.kakao.receiver.requests.clear()
    return bot


@pytest.fixture
def _no_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests do not wait for an outcome."""
    monkeypatch.setattr(send, "REPLY_HOLD", 0)


no_hold = pytest.mark.usefixtures("_no_hold")


async def poll_once(bot: Bot) -> int:
    """One poll of one process: claim, post, settle."""
    async with bot.hub.autocommit() as tx:
        claims = await prepare_waiting_claims(tx)
        due_callbacks = await claim_waiting_replies(tx, claims, KOREAN_TEXTS) if claims else []
    for due in due_callbacks:
        await bot.hub.relay.callbacks.send(due.callback, due.body)
    return len(due_callbacks)


@asynccontextmanager
async def waiting_worker(hub: Hub) -> AsyncGenerator[None]:
    workers = [worker for worker in build_workers(hub) if isinstance(worker, WaitingReplyWorker)]
    assert workers
    tasks = [asyncio.create_task(worker.run()) for worker in workers]
    try:
        yield
    finally:
        for worker in workers:
            worker.stop()
        await asyncio.gather(*tasks)


async def is_waiting(bot: Bot, message: UUID) -> bool:
    row = await bot.chat.reply(message)
    return row is not None and row["waits_until"] is not None


async def test_a_request_is_held_until_the_limit_allows_its_reply(
    bot: Bot, travel: Travel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(send, "REPLY_HOLD", 60.0)
    message = await bot.insert_message("first")
    async with waiting_worker(bot.hub):
        sending = asyncio.create_task(bot.send_block(message, "hello"))
        await wait_until(lambda: is_waiting(bot, message))
        await travel(STEP)

        delivered = await sending

    row = await bot.chat.reply(message)
    assert row
    assert isinstance(delivered, DeliveredReply)
    assert delivered.reply_id == row["id"]
    assert (row["state"], row["spent_by"], bot.kakao.texts("first")) == ("sent", "agent", [["hello"]])


@no_hold
async def test_a_reply_is_posted_after_its_request_was_answered(bot: Bot, travel: Travel) -> None:
    message = await bot.insert_message("first")

    result = await bot.send_block(message, "hello")

    assert isinstance(result, KeptReply)
    assert await bot.chat.status(message) == ("ACKED", "answered")
    assert (await poll_once(bot), bot.kakao.posts) == (0, 0)
    await travel(STEP)
    assert await poll_once(bot) == 1
    assert bot.kakao.texts("first") == [["hello"]]
    assert await bot.send_block(message, "hello") == DeliveredReply(result.reply_id, await settled_at_ms(bot, message))


async def settled_at_ms(bot: Bot, message: UUID) -> int:
    return await bot.chat.db.fetchval(
        "select floor(extract(epoch from settled_at) * 1000)::bigint from relay_replies where message_id = $1", message
    )


@no_hold
async def test_a_reply_is_posted_before_its_callback_expires_whatever_the_limit(bot: Bot, travel: Travel) -> None:
    messages = [await bot.insert_message(str(number)) for number in range(4)]
    for message in messages:
        await bot.send_block(message, "hello")
    await travel(STALL_AFTER)

    assert await poll_stall(bot) == 0
    posted = [await poll_once(bot) for _ in range(5)]

    assert posted == [1, 1, 1, 1, 0]  # one of each conversation at a time
    assert [bot.kakao.texts(str(number)) for number in range(4)] == [[["hello"]]] * 4


@no_hold
async def test_without_a_worker_a_reply_becomes_a_late_one(bot: Bot, travel: Travel) -> None:
    message = await bot.insert_message("first")
    await bot.send_block(message, "waited")
    await travel(timedelta(seconds=56))

    assert await poll_once(bot) == 0
    assert isinstance(await bot.send_block(message, "waited"), KeptReply)
    await travel(STEP)
    await bot.send_reply(await bot.insert_message("second"), "now")

    assert bot.kakao.texts("second") == [["waited", "now"]]


@no_hold
async def test_further_blocks_of_a_waiting_reply_are_joined(bot: Bot, travel: Travel) -> None:
    message = await bot.insert_message("first")
    results = [await bot.send_block(message, text) for text in ("one", "two", "three", "four")]
    await travel(STEP)
    await poll_once(bot)

    assert [*map(type, results)] == [KeptReply] * 4
    assert bot.kakao.texts("first") == [["one", "two", "three"]]


@no_hold
async def test_further_blocks_of_a_waiting_reply_are_not_shown_before_it(bot: Bot, travel: Travel) -> None:
    first, second = await bot.insert_message("first"), await bot.insert_message("second")
    for text in ("one", "two"):
        await bot.send_block(first, text)
    await travel(STEP)
    await bot.send_reply(second, "now")
    await travel(STEP - timedelta(seconds=10))
    await poll_once(bot)

    assert (bot.kakao.texts("second"), bot.kakao.texts("first")) == ([["now"]], [["one", "two"]])


@no_hold
async def test_a_late_reply_that_never_fits_lets_smaller_ones_pass_a_waiting_one(bot: Bot, travel: Travel) -> None:
    await bot.send_late_reply("one", "two", "three")
    await bot.send_late_reply("late")
    await bot.send_block(await bot.insert_message("waiting"), "now")
    await travel(STEP)
    await poll_once(bot)

    assert bot.kakao.texts("waiting") == [["late", "now"]]


async def test_a_reply_that_is_posted_while_its_request_ends_is_not_reported_as_unknown(
    bot: Bot, travel: Travel, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = 0.0
    monkeypatch.setattr(send, "monotonic", lambda: seconds)
    respond = asyncio.Event()
    bot.kakao.responder = respond_after(respond, kakao_response("SUCCESS"))
    message = await bot.insert_message("first")
    sending = asyncio.create_task(bot.send_block(message, "hello"))
    await wait_until(lambda: is_waiting(bot, message))
    await travel(STEP)
    polling = asyncio.create_task(poll_once(bot))
    await bot.kakao.receiver.wait_for_requests(1)
    seconds = send.REPLY_HOLD

    assert isinstance(await sending, KeptReply)
    respond.set()
    await polling
    assert await bot.chat.state(message) == "sent"


@no_hold
async def test_a_waiting_reply_is_not_shown_with_another_one(bot: Bot, travel: Travel) -> None:
    """Its own callback is still to be used."""
    first = await bot.insert_message("first")
    await bot.send_block(first, "one")
    await travel(STEP)
    await bot.send_reply(await bot.insert_message("second"), "two")
    await travel(STEP - timedelta(seconds=10))
    await poll_once(bot)

    assert (bot.kakao.texts("second"), bot.kakao.texts("first")) == ([["two"]], [["one"]])


@no_hold
async def test_an_account_has_a_bounded_number_of_waiting_replies(bot: Bot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply, "MAX_WAITING_REPLIES", 3)
    messages = [await bot.insert_message(str(number)) for number in range(5)]

    results = [await asyncio.gather(bot.send_block(message, "hello"), return_exceptions=True) for message in messages]

    assert [type(result) for [result] in results] == [KeptReply] * 3 + [RateLimited] * 2
    assert await bot.chat.reply(messages[4]) is None


@no_hold
async def test_a_reply_above_the_limit_to_an_expired_callback_is_late(bot: Bot) -> None:
    message = await bot.insert_message("first", timedelta(seconds=-1))

    with pytest.raises(CallbackExpired):
        await bot.send_block(message, "late")

    assert not await is_waiting(bot, message)


@no_hold
async def test_an_unpaired_user_gets_no_waiting_reply(bot: Bot, travel: Travel) -> None:
    await bot.send_block(await bot.insert_message("first"), "hello")
    await bot.chat.db.execute("update conversation_mappings set state = 'UNPAIRED'")
    await travel(STEP)

    assert (await poll_once(bot), bot.kakao.posts) == (0, 0)


@no_hold
async def test_several_processes_post_a_waiting_reply_once(bot: Bot, travel: Travel) -> None:
    await bot.send_block(await bot.insert_message("first"), "hello")
    await travel(STEP)

    counts = await asyncio.gather(*(poll_once(bot) for _ in range(8)))

    assert (sum(counts), bot.kakao.texts("first")) == (1, [["hello"]])


@no_hold
async def test_a_waiting_reply_is_posted_although_the_answer_to_its_claim_was_lost(
    bot: Bot, travel: Travel, settings: Settings, database_urls: DatabaseUrls
) -> None:
    await bot.send_block(await bot.insert_message("first"), "hello")
    await travel(STEP)
    async with losing_answers(database_urls.main) as (proxy, url):
        proxy.lose_answers(waiting.Q.claim_waiting_replies)
        async with open_hub(settings, DatabaseUrls(url, database_urls.direct)) as hub, waiting_worker(hub):
            await bot.kakao.receiver.wait_for_requests(1)

    assert (proxy.lost, bot.kakao.texts("first")) == (1, [["hello"]])


@no_hold
async def test_a_waiting_reply_that_is_confirmed_too_late_is_kept(
    bot: Bot, travel: Travel, settings: Settings, database_urls: DatabaseUrls
) -> None:
    message = await bot.insert_message("first")
    await bot.send_block(message, "hello")
    await travel(STEP)
    async with losing_answers(database_urls.main) as (proxy, url):
        proxy.lose_answers(waiting.Q.claim_waiting_replies)
        proxy.lose_answers(callback.Q.confirm_claims, 1000)
        async with open_hub(settings, DatabaseUrls(url, database_urls.direct)) as hub, waiting_worker(hub):
            await wait_until(lambda: proxy.lost > 1)
            await travel(callback.CONFIRM_WINDOW)
            proxy.lose_answers(callback.Q.confirm_claims, 0)
            await wait_until(lambda: is_settled(bot, message))

    assert await bot.chat.state(message) == "late"


async def is_settled(bot: Bot, message: UUID) -> bool:
    return await bot.chat.state(message) != "sending"


@no_hold
async def test_an_unsent_waiting_reply_is_kept(bot: Bot, travel: Travel) -> None:
    message = await bot.chat.message(bot.owner, bot.key, "http://127.0.0.1:1/closed-port")
    await bot.send_block(message, "unlucky")
    await travel(STEP)
    await poll_once(bot)
    await travel(STEP)
    bot.kakao.responder = kakao_response("SUCCESS")
    await bot.send_reply(await bot.insert_message("second"), "now")

    assert bot.kakao.texts("second") == [["unlucky", "now"]]
