"""Long texts: the rest is stored together with its beginning, whatever becomes of that, and is shown after it."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import httpx2
import pytest

from pabal.hub import Hub
from pabal.relay.reply import send
from pabal.relay.reply.recorded import MAX_FURTHER_REPLIES
from pabal.relay.webhook import handle, held
from pabal.relay.webhook.skill_response import KOREAN_TEXTS
from pabal.settings import Settings
from relay.holding import held_chat
from relay.skills import send_message, text_of
from relay.test_waiting_replies import poll_once
from support.fake_kakao import kakao_response
from support.receiver import respond_after
from support.relay_rows import Bot, Chat

pytestmark = pytest.mark.anyio

PARTS = [f"{number:0>700}" for number in range(8)]
TEXT = " ".join(PARTS)
BUTTON = KOREAN_TEXTS.check_answer


@pytest.fixture(params=[False, True], ids=["plain", "encrypted"])
def settings(settings: Settings, request: pytest.FixtureRequest) -> Settings:
    return settings.model_copy(update={"relay_encrypt_text": request.param})


async def send_text(bot: Bot, web: httpx2.AsyncClient, message: object, text: str = TEXT) -> httpx2.Response:
    return await web.post(
        "/v1/reply", json={"messageId": str(message), "response": text}, headers=bot.owner.header, timeout=60
    )


async def press_button(web: httpx2.AsyncClient) -> Sequence[str]:
    return text_of(await send_message(web, BUTTON)).split("\n")


def labels_of(bot: Bot, name: str) -> list[list[str]]:
    """The labels of the quick replies of each response that was posted to this callback."""
    return [
        [button["label"] for button in response["template"].get("quickReplies", [])]
        for response in bot.kakao.responses(name)
    ]


async def count_further(bot: Bot) -> int:
    return await bot.chat.db.fetchval("select count(*) from relay_replies where continues is not null")


async def test_the_first_bubbles_have_the_button_for_the_rest(bot: Bot, web: httpx2.AsyncClient) -> None:
    response = await send_text(bot, web, await bot.insert_message("first"))

    assert response.json()["callbackSent"]
    assert bot.kakao.texts("first") == [PARTS[:3]]
    assert labels_of(bot, "first") == [[BUTTON]]
    assert await press_button(web) == PARTS[3:6]
    assert await press_button(web) == PARTS[6:]


async def test_the_rest_is_stored_before_the_post(bot: Bot, web: httpx2.AsyncClient) -> None:
    """A process that ends in the POST loses nothing."""
    respond = asyncio.Event()
    bot.kakao.responder = respond_after(respond, kakao_response("SUCCESS"))
    replying = asyncio.create_task(send_text(bot, web, await bot.insert_message("first")))
    await bot.kakao.receiver.wait_for_requests(1)

    assert await count_further(bot) == 5

    respond.set()
    await replying


async def test_the_rest_is_not_shown_while_its_beginning_is_being_sent(bot: Bot, web: httpx2.AsyncClient) -> None:
    respond = asyncio.Event()
    bot.kakao.responder = respond_after(respond, kakao_response("SUCCESS"))
    replying = asyncio.create_task(send_text(bot, web, await bot.insert_message("first")))
    await bot.kakao.receiver.wait_for_requests(1)
    bot.kakao.responder = kakao_response("SUCCESS")

    await bot.send_reply(await bot.insert_message("second"), "now")
    respond.set()
    await replying
    await bot.send_reply(await bot.insert_message("third"), "then")

    assert bot.kakao.texts("second") == [["now"]]
    assert labels_of(bot, "second") == [[BUTTON]]
    assert bot.kakao.texts("third") == [[*PARTS[3:5], "then"]]


async def test_a_text_that_does_not_reach_kakao_is_kept_whole(bot: Bot, web: httpx2.AsyncClient) -> None:
    message = await bot.chat.message(bot.owner, bot.key, "http://127.0.0.1:1/closed")

    response = await send_text(bot, web, message)

    assert (response.status_code, response.json()["code"]) == (502, "CALLBACK_FAILED")
    await bot.chat.db.execute("update inbound_messages set callback_expires_at = pabal.now()")
    assert [await press_button(web) for _ in range(3)] == [PARTS[:3], PARTS[3:6], PARTS[6:]]


async def test_after_a_refused_beginning_the_rest_is_not_shown(bot: Bot, web: httpx2.AsyncClient) -> None:
    bot.kakao.responder = kakao_response("FAIL", "no")
    message = await bot.insert_message("first")
    response = await send_text(bot, web, message)
    kept = await bot.send_block(message, "another block")
    bot.kakao.responder = kakao_response("SUCCESS")

    await bot.send_reply(await bot.insert_message("second"), "now")

    assert response.json()["code"] == "CALLBACK_FAILED"
    assert kept
    assert bot.kakao.texts("second") == [["another block", "now"]]
    assert labels_of(bot, "second") == [[]]


async def test_an_unknown_outcome_keeps_the_rest(bot: Bot, web: httpx2.AsyncClient) -> None:
    bot.kakao.responder = kakao_response("PERHAPS")

    response = await send_text(bot, web, await bot.insert_message("first"))

    assert response.json()["code"] == "CALLBACK_UNKNOWN"
    await bot.chat.db.execute("update inbound_messages set callback_expires_at = pabal.now()")
    assert [await press_button(web) for _ in range(2)] == [PARTS[3:6], PARTS[6:]]


async def test_a_long_text_has_one_time_limit(
    bot: Bot, web: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(send, "REQUEST_TIMEOUT", 2.0)
    message = await bot.insert_message("first")

    async with bot.chat.db.transaction():
        await bot.chat.db.execute("lock table relay_replies in exclusive mode")
        async with asyncio.timeout(5):
            response = await send_text(bot, web, message)

    assert response.json()["code"] == "CALLBACK_UNKNOWN"


async def test_the_same_text_again_is_stored_once(bot: Bot, web: httpx2.AsyncClient) -> None:
    message = await bot.insert_message("first")

    first, again = [await send_text(bot, web, message) for _ in range(2)]

    assert again.json() == first.json()
    assert await count_further(bot) == 5


async def test_a_text_with_the_same_beginning_is_another_block(bot: Bot, web: httpx2.AsyncClient) -> None:
    message = await bot.insert_message("first")
    await send_text(bot, web, message)

    another = await send_text(bot, web, message, f"{TEXT} {PARTS[0]}")

    assert another.json()["callbackSent"] is False
    assert await count_further(bot) == 5 + 7


async def test_equal_parts_of_a_text_are_all_shown(bot: Bot, web: httpx2.AsyncClient) -> None:
    await send_text(bot, web, await bot.insert_message("first"), " ".join(["same" * 200] * 8))

    assert await count_further(bot) == 5


async def test_a_long_further_block_is_kept_whole(bot: Bot, web: httpx2.AsyncClient) -> None:
    message = await bot.insert_message("first")
    await bot.send_reply(message, "beginning")
    for number in range(MAX_FURTHER_REPLIES - 1):
        await bot.send_block(message, f"block {number}")

    last = await send_text(bot, web, message)
    too_many = await send_text(bot, web, message, f"{TEXT} {PARTS[0]}")

    assert last.json()["callbackSent"] is False
    assert too_many.json()["code"] == "ALREADY_REPLIED"
    assert await count_further(bot) == MAX_FURTHER_REPLIES + 5


async def test_a_text_above_the_rate_limit_waits_whole(
    bot: Bot, web: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(send, "REPLY_HOLD", 0)
    await bot.chat.db.execute("update accounts set rate_limit_per_minute = 1")
    await bot.send_reply(await bot.insert_message("first"), "one")

    response = await send_text(bot, web, await bot.insert_message("second"))
    await bot.chat.db.execute("update accounts set rate_limit_per_minute = 10000; delete from pabal.limits")
    await poll_once(bot)

    assert response.json()["callbackSent"] is False
    assert bot.kakao.texts("second") == [PARTS[:3]]
    assert labels_of(bot, "second") == [[BUTTON]]
    assert await press_button(web) == PARTS[3:6]


async def test_a_long_text_in_the_webhook_has_the_button(hub: Hub, chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "HOLD_WINDOW", timedelta(minutes=1))
    monkeypatch.setattr(handle, "WEBHOOK_TIMEOUT", 60.0)
    async with held_chat(hub, chat) as user:
        webhook = user.start("hi")
        message = await user.next_message()

        await user.web.post("/v1/reply", json={"messageId": str(message), "response": TEXT}, headers=user.owner.header)

        response = await webhook
        assert text_of(response).split("\n") == PARTS[:3]
        assert [button["label"] for button in response["template"]["quickReplies"]] == [BUTTON]
        assert text_of(await user.start(BUTTON)).split("\n") == PARTS[3:6]
