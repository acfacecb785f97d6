"""Late replies that fit beside no other answer: smaller ones pass them, and the button shows them."""

from datetime import timedelta

import httpx2
import pytest

from pabal.core.errors import CallbackExpired
from pabal.hub import Hub
from pabal.relay.webhook import handle, held
from relay.holding import held_chat
from relay.skills import USE_CALLBACK, send_message, text_of
from support.relay_rows import Bot, Chat

pytestmark = pytest.mark.anyio


async def test_an_answer_in_the_webhook_lets_smaller_late_replies_pass(
    hub: Hub, chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held, "HOLD_WINDOW", timedelta(minutes=1))
    monkeypatch.setattr(handle, "WEBHOOK_TIMEOUT", 60.0)
    async with held_chat(hub, chat) as user:
        large, small = [await chat.message(user.owner, "channel:user", None) for _ in range(2)]
        with pytest.raises(CallbackExpired):
            await user.reply(large, "one", "two", "three")
        with pytest.raises(CallbackExpired):
            await user.reply(small, "late")
        webhook = user.start("hi")
        while (message := await user.next_message()) in {large, small}:
            continue

        await user.reply(message, "hello")

        assert text_of(await webhook) == "late\nhello"
        assert text_of(await user.start("답변 확인")) == "one\ntwo\nthree"


async def test_a_long_text_that_is_late_is_shown_whole_and_in_order(bot: Bot, web: httpx2.AsyncClient) -> None:
    text = " ".join(f"{number:0>499}" for number in range(10))
    message = await bot.insert_message("gone", timedelta(seconds=-1))

    late = await web.post("/v1/reply", json={"messageId": str(message), "response": text}, headers=bot.owner.header)
    await bot.send_reply(await bot.insert_message("next"), "now")
    shown = [await send_message(web, "답변 확인") for _ in range(2)]

    assert late.json()["code"] == "CALLBACK_EXPIRED"
    assert bot.kakao.texts("next") == [["now"]]  # not the end of a text whose beginning does not fit
    assert " ".join(map(text_of, shown)).split() == text.split()
    assert ["quickReplies" in response["template"] for response in shown] == [True, False]


async def test_a_late_reply_without_outputs_keeps_no_press_from_the_bot(bot: Bot, web: httpx2.AsyncClient) -> None:
    message = await bot.insert_message("gone", timedelta(seconds=-1))
    response = {"version": "2.0", "data": {"key": "value"}}

    late = await web.post("/v1/reply", json={"messageId": str(message), "response": response}, headers=bot.owner.header)

    assert late.json()["code"] == "CALLBACK_EXPIRED"
    assert await send_message(web, "답변 확인") == USE_CALLBACK
