"""Held webhooks when a process is killed, or the database's answer to the claim is lost."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import httpx2
import pytest
from pydantic import SecretStr

from pabal.core.errors import CallbackFailed, CallbackUnconfirmed
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.relay.reply import callback, reply, webhook_answer
from pabal.relay.reply.answer_signals import AnswerSignals
from pabal.relay.reply.callback import SENDING_TIMEOUT_ERROR, rescue_lost_callbacks
from pabal.relay.webhook import handle, held
from pabal.relay.webhook.skill_response import KOREAN_TEXTS
from pabal.settings import Settings
from relay.holding import held_chat
from relay.skills import USE_CALLBACK, post_webhook, skill_payload, text_of
from relay.test_held_webhooks import lose_signal
from relay.test_stall import Travel
from support.answer_loss import AnswerLossProxy, losing_answers
from support.clusters import Connection
from support.fake_kakao import FakeKakao
from support.nats_server import run_nats_server
from support.relay_rows import Bot, Chat, skill_response
from support.wait import wait_until

pytestmark = pytest.mark.anyio

PROGRAM = Path(__file__).with_name("dying_process.py")


@pytest.fixture
async def lossy_proxy(database_urls: DatabaseUrls) -> AsyncGenerator[tuple[AnswerLossProxy, DatabaseUrls]]:
    async with losing_answers(database_urls.main) as (proxy, url):
        yield proxy, DatabaseUrls(url, database_urls.direct)


@contextmanager
def dying_process(database_urls: DatabaseUrls, folder: Path) -> "Generator[subprocess.Popen[str]]":
    """A hub process that dies between claiming an answer and writing it."""
    process = subprocess.Popen(
        [sys.executable, PROGRAM, database_urls.main, str(database_urls.direct), folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(PROGRAM.parents[1])},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe
            pipe.close()


async def test_an_answer_whose_signal_nats_lost_is_found_by_the_poll(
    chat: Chat, settings: Settings, database_urls: DatabaseUrls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held, "HOLD_WINDOW", timedelta(minutes=1))
    monkeypatch.setattr(handle, "WEBHOOK_TIMEOUT", 60.0)
    async with run_nats_server() as nats:
        on_nats = settings.model_copy(update={"doorbell": SecretStr(nats.url)})
        async with open_hub(on_nats, database_urls) as hub, held_chat(hub, chat) as user:
            await wait_until(lambda: hub.doorbell.is_forwarding)
            webhook = user.start("hi")
            message = await user.next_message()
            await user.wait_until_held()
            monkeypatch.setattr(AnswerSignals, "send", lose_signal)

            await user.reply(message, "hello")

            async with asyncio.timeout(30):
                assert text_of(await webhook) == "hello"


async def test_a_process_killed_between_the_fence_and_the_response_leaves_unknown_and_the_same_answer(
    bot: Bot, web: httpx2.AsyncClient, database_urls: DatabaseUrls, tmp_path: Path, travel: Travel
) -> None:
    await bot.chat.db.execute("update accounts set answer_mode = 'synchronous'")
    payload = skill_payload("hi", callbackUrl=None, eventId="one")
    with dying_process(database_urls, tmp_path) as process:
        assert process.stdout
        address = (await asyncio.to_thread(process.stdout.readline)).strip()
        async with httpx2.AsyncClient(base_url=address, timeout=60) as client:
            webhook = asyncio.create_task(post_webhook(client, payload))
            await wait_until(lambda: has_message(bot.chat))
            message = await bot.chat.db.fetchval("select id from inbound_messages")
            replying = asyncio.create_task(bot.send_reply(message, "hello"))
            with pytest.raises(httpx2.TransportError):
                await webhook
        assert await asyncio.to_thread(process.wait) == -9

    assert await bot.chat.state(message) == "sending"
    assert text_of(await post_webhook(web, payload)) == "hello"
    await travel(timedelta(seconds=31))
    async with bot.hub.transaction() as tx:
        assert await rescue_lost_callbacks(tx, 100) == 1
    with pytest.raises(CallbackUnconfirmed):
        await replying
    row = await bot.chat.reply(message)
    assert row
    assert (row["outcome"], row["error"]) == ("unknown", SENDING_TIMEOUT_ERROR)
    assert await bot.chat.failures() == ["unknown"]
    assert text_of(await post_webhook(web, payload)) == "hello"


async def has_message(chat: Chat) -> bool:
    return await chat.db.fetchval("select count(*) from inbound_messages where webhook_open_until is not null") == 1


@pytest.fixture
async def lossy_hub(
    lossy_proxy: tuple[AnswerLossProxy, DatabaseUrls], settings: Settings
) -> AsyncGenerator[tuple[AnswerLossProxy, Hub]]:
    async with open_hub(settings, lossy_proxy[1]) as hub:
        yield lossy_proxy[0], hub


async def test_a_claim_that_waits_for_a_lock_ends_at_the_deadline_and_its_answer_goes_to_the_callback(
    hub: Hub, chat: Chat, fake_kakao: FakeKakao, owner: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handle, "WEBHOOK_TIMEOUT", 3.0)
    async with held_chat(hub, chat, answer_mode="synchronous") as user:
        webhook = user.start("hi", callbackUrl=fake_kakao.url("first"))
        message = await user.next_message()
        await user.wait_until_held()
        async with owner.transaction():
            await owner.execute("select from inbound_messages where id = $1 for update", message)
            replying = asyncio.create_task(user.reply(message, "hello"))

            assert await webhook == USE_CALLBACK

        await replying
        assert fake_kakao.texts("first") == [["hello"]]
        assert await chat.state(message) == "sent"


async def test_an_answer_whose_claim_was_not_answered_is_kept_for_the_button(
    lossy_hub: tuple[AnswerLossProxy, Hub], chat: Chat
) -> None:
    proxy, hub = lossy_hub
    async with held_chat(hub, chat, answer_mode="synchronous") as user:
        webhook = user.start("hi")
        message = await user.next_message()
        await user.wait_until_held()
        proxy.lose_answers(webhook_answer.Q.take_answers)
        keeping = proxy.pause(callback.Q.settle_callbacks)
        replying = asyncio.create_task(user.reply(message, "hello"))

        assert text_of(await webhook) == KOREAN_TEXTS.preparing
        keeping.resume()

        with pytest.raises(CallbackFailed):
            await replying
        assert proxy.lost == 1
        assert await chat.state(message) == "late"
        assert text_of(await user.start("답변 확인")) == "hello"


async def test_an_answer_whose_claim_was_not_answered_and_that_is_kept_before_the_response_is_the_response(
    lossy_hub: tuple[AnswerLossProxy, Hub], chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handle, "WEBHOOK_TIMEOUT", 60.0)
    proxy, hub = lossy_hub
    async with held_chat(hub, chat, answer_mode="synchronous") as user:
        webhook = user.start("hi")
        message = await user.next_message()
        await user.wait_until_held()
        proxy.lose_answers(webhook_answer.Q.take_answers)
        responding = proxy.pause(reply.Q.claim_late_outputs)

        with pytest.raises(CallbackFailed):
            await user.reply(message, "hello")
        assert await chat.state(message) == "late"
        responding.resume()

        assert proxy.lost == 1
        assert await webhook == skill_response("hello")
        row = await chat.reply(message)
        assert row
        assert row["shown_with"] == message


@pytest.mark.parametrize("lost_moves", [0, 1], ids=["the claim is lost", "the move to the callback is lost as well"])
async def test_an_answer_whose_claim_was_not_answered_goes_to_the_callback(
    lossy_hub: tuple[AnswerLossProxy, Hub], chat: Chat, fake_kakao: FakeKakao, lost_moves: int
) -> None:
    proxy, hub = lossy_hub
    async with held_chat(hub, chat, answer_mode="synchronous") as user:
        payload = skill_payload("hi", callbackUrl=fake_kakao.url("first"))
        webhook = user.start_payload(payload)
        message = await user.next_message()
        await user.wait_until_held()
        proxy.lose_answers(webhook_answer.Q.take_answers)
        proxy.lose_answers(webhook_answer.Q.move_to_callback, lost_moves)

        await user.reply(message, "hello")

        assert proxy.lost == 1 + lost_moves
        assert await webhook == USE_CALLBACK
        assert fake_kakao.texts("first") == [["hello"]]
        assert await chat.state(message) == "sent"
        assert await user.start_payload(payload) == USE_CALLBACK
