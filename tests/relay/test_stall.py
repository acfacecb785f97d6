"""Before an unanswered callback expires, the hub sends its own text, under the same fence as replies."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

import httpx2
import pytest

from pabal.core.errors import CallbackExpired
from pabal.hub import Hub
from pabal.hub_workers import build_workers
from pabal.relay.reply.stall import StallWorker, build_stall_body, claim_expiring_callbacks, new_claims
from pabal.relay.webhook.skill_response import KOREAN_TEXTS
from relay.skills import USE_CALLBACK, post_webhook, send_message, skill_payload, text_of
from support.fake_kakao import kakao_response
from support.receiver import respond_after, respond_with
from support.relay_rows import Bot

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]
STALL_AFTER = timedelta(seconds=50)
STALL_TEXT = KOREAN_TEXTS.still_working


async def poll_once(bot: Bot, batch: int = 100) -> int:
    """One poll of one process: claim, post, settle."""
    async with bot.hub.autocommit() as tx:
        callbacks = await claim_expiring_callbacks(tx, STALL_AFTER, new_claims(batch))
    for callback in callbacks:
        await bot.hub.relay.callbacks.send(callback.callback, build_stall_body(callback, KOREAN_TEXTS))
    return len(callbacks)


@asynccontextmanager
async def stall_worker(hub: Hub) -> AsyncGenerator[StallWorker]:
    workers = [worker for worker in build_workers(hub) if isinstance(worker, StallWorker)]
    tasks = [asyncio.create_task(worker.run()) for worker in workers]
    try:
        yield workers[0]
    finally:
        for worker in workers:
            worker.stop()
        await asyncio.gather(*tasks)


async def test_a_stall_is_sent_neither_too_early_nor_too_late(bot: Bot, travel: Travel) -> None:
    message = await bot.insert_message("first")
    await travel(STALL_AFTER - timedelta(seconds=2))
    assert await poll_once(bot) == 0

    await travel(timedelta(seconds=2))
    assert await poll_once(bot) == 1
    assert await poll_once(bot) == 0

    expired = await bot.insert_message("dead")
    await travel(timedelta(seconds=55))
    assert await poll_once(bot) == 0
    assert bot.kakao.texts("first") == [[STALL_TEXT]]
    assert bot.kakao.posts == 1
    assert await bot.chat.reply(expired) is None
    row = await bot.chat.reply(message)
    assert row
    assert (row["spent_by"], row["outcome"], row["state"], row["response"]) == ("hub", "sent", "awaited", None)
    assert await bot.chat.status(message) == ("QUEUED", None)


async def test_the_stalls_button_fetches_the_reply(bot: Bot, travel: Travel, web: httpx2.AsyncClient) -> None:
    message = await bot.insert_message("first")
    await travel(STALL_AFTER)
    await poll_once(bot)
    [stalled] = bot.kakao.responses("first")
    [button] = stalled["template"]["quickReplies"]
    press = button["messageText"]

    assert text_of(await send_message(web, press)) == KOREAN_TEXTS.not_ready  # the callback lives, but is spent
    with pytest.raises(CallbackExpired):
        await bot.send_reply(message, "at last")

    assert text_of(await send_message(web, press)) == "at last"
    assert await send_message(web, press) == USE_CALLBACK  # nothing is outstanding: a message to the bot


async def test_a_repeated_press_is_no_message_although_nothing_is_outstanding_now(
    bot: Bot, travel: Travel, web: httpx2.AsyncClient
) -> None:
    message = await bot.insert_message("first")
    await travel(STALL_AFTER)
    await poll_once(bot)
    press = skill_payload(KOREAN_TEXTS.check_answer, callbackUrl=bot.kakao.url("press"), eventId="press")

    assert text_of(await post_webhook(web, press)) == KOREAN_TEXTS.not_ready
    with pytest.raises(CallbackExpired):
        await bot.send_reply(message, "at last")
    await bot.send_reply(await bot.insert_message("second"), "now")

    assert text_of(await post_webhook(web, press)) == KOREAN_TEXTS.nothing_to_check


async def test_a_reply_after_the_stall_is_kept_and_shown_with_the_next(bot: Bot, travel: Travel) -> None:
    message = await bot.insert_message("first")
    await travel(STALL_AFTER)
    await poll_once(bot)

    with pytest.raises(CallbackExpired):
        await bot.send_reply(message, "at last")
    await bot.send_reply(await bot.insert_message("second"), "now")

    assert bot.kakao.texts("first") == [[STALL_TEXT]]
    assert bot.kakao.texts("second") == [["at last", "now"]]
    row = await bot.chat.reply(message)
    assert row
    assert (row["spent_by"], row["outcome"], row["state"]) == ("hub", "sent", "late")
    assert await bot.chat.status(message) == ("ACKED", "answered")


@pytest.mark.parametrize("status", ["QUEUED", "DELIVERED", "ACKED"])
async def test_an_unanswered_message_is_stalled_in_every_status(bot: Bot, travel: Travel, status: str) -> None:
    await bot.insert_message("first")
    await bot.chat.db.execute("update inbound_messages set status = $1", status)
    await travel(STALL_AFTER)

    assert await poll_once(bot) == 1


async def test_an_answered_message_is_not_stalled(bot: Bot, travel: Travel) -> None:
    await bot.send_reply(await bot.insert_message("first"), "hello")
    await bot.send_late_reply("late")
    await travel(STALL_AFTER)

    assert await poll_once(bot) == 0
    assert bot.kakao.posts == 1


async def test_late_replies_go_along_with_a_stall(bot: Bot, travel: Travel) -> None:
    await bot.insert_message("first")
    await bot.insert_message("second")
    await travel(STALL_AFTER)
    await bot.send_late_reply("late")

    assert await poll_once(bot) == 2
    assert sorted(bot.kakao.texts("first") + bot.kakao.texts("second")) == sorted([["late", STALL_TEXT], [STALL_TEXT]])


async def test_late_replies_of_a_refused_stall_wait_again(bot: Bot, travel: Travel) -> None:
    message = await bot.insert_message("first")
    await travel(STALL_AFTER)
    await bot.send_late_reply("late")
    bot.kakao.responder = kakao_response("FAIL", "no")
    await poll_once(bot)
    bot.kakao.responder = kakao_response("SUCCESS")
    await bot.send_reply(await bot.insert_message("second"), "now")

    assert bot.kakao.texts("second") == [["late", "now"]]
    row = await bot.chat.reply(message)
    assert row
    assert (row["spent_by"], row["outcome"], row["error"]) == ("hub", "refused", "Kakao returned FAIL: no")
    assert await bot.chat.failures() == ["refused"]


async def test_an_unsent_stall_is_refused_and_not_kept(bot: Bot, travel: Travel) -> None:
    message = await bot.chat.message(bot.owner, bot.key, "http://127.0.0.1:1/closed-port")
    await travel(STALL_AFTER)

    assert await poll_once(bot) == 1
    row = await bot.chat.reply(message)
    assert row
    assert (row["outcome"], row["state"], row["error"]) == ("refused", "awaited", "connection failed")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ("status = 'EXPIRED', reason = 'queue_life', ended_at = pabal.now()", KOREAN_TEXTS.expired),
        ("status = 'CANCELLED', reason = 'unpaired', ended_at = pabal.now()", KOREAN_TEXTS.unpaired),
        ("status = 'CANCELLED', reason = 'replaced', ended_at = pabal.now()", KOREAN_TEXTS.unpaired),
        ("status = 'CANCELLED', reason = 'blocked', ended_at = pabal.now()", KOREAN_TEXTS.blocked),
        ("status = 'CANCELLED', reason = 'disabled', ended_at = pabal.now()", KOREAN_TEXTS.disabled),
        ("status = 'CANCELLED', reason = 'erased', ended_at = pabal.now()", None),
    ],
)
async def test_the_stall_of_an_ended_message_says_so(bot: Bot, travel: Travel, changes: str, text: str | None) -> None:
    await bot.send_late_reply("must not be shown")
    await bot.insert_message("first")
    await bot.chat.db.execute(f"update inbound_messages set {changes} where callback_expires_at > pabal.now()")
    await travel(STALL_AFTER)

    await poll_once(bot)

    assert bot.kakao.texts("first") == ([[text]] if text else [])


async def test_several_processes_send_one_stall(bot: Bot, travel: Travel) -> None:
    names = [str(number) for number in range(60)]
    for name in names:
        await bot.insert_message(name)
    await travel(STALL_AFTER)

    counts = await asyncio.gather(*(poll_once(bot, batch=25) for _ in range(8)))

    assert sum(counts) + await poll_once(bot) == 60
    assert all(bot.kakao.texts(name) == [[STALL_TEXT]] for name in names)


async def test_the_worker_polls_and_finishes_its_posts_on_stop(bot: Bot, travel: Travel) -> None:
    message = await bot.insert_message("first")
    respond = asyncio.Event()
    bot.kakao.responder = respond_after(respond, respond_with(200, b"{}"))
    async with stall_worker(bot.hub) as worker:
        await travel(STALL_AFTER)
        await bot.kakao.receiver.wait_for_requests(1)
        worker.stop()
        respond.set()

    row = await bot.chat.reply(message)
    assert row
    assert (row["outcome"], bot.kakao.posts) == ("sent", 1)


async def test_the_stall_can_be_switched_off(bot: Bot) -> None:
    without_stall = replace(bot.hub, settings=bot.hub.settings.model_copy(update={"still_working_after": timedelta()}))

    assert [worker for worker in build_workers(bot.hub) if isinstance(worker, StallWorker)]
    assert not [worker for worker in build_workers(without_stall) if isinstance(worker, StallWorker)]
