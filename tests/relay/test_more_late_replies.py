"""A response carries the button as long as late replies remain that did not fit into it."""

from datetime import timedelta
from typing import Any

import httpx2
import pytest

from pabal.core.errors import CallbackExpired
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.relay.reply import reply as reply_module
from pabal.relay.reply.reply import BotReply, encode_skill_response
from pabal.relay.webhook import handle, held
from pabal.settings import Settings
from relay.holding import held_chat
from relay.skills import send_message, text_of
from relay.test_stall import Travel
from relay.test_waiting_replies import poll_once
from support.answer_loss import losing_answers
from support.relay_rows import Bot, Chat, digest, skill_response

pytestmark = pytest.mark.anyio

BUTTON = "답변 확인"


@pytest.fixture(params=[False, True], ids=["plain", "encrypted"])
def settings(settings: Settings, request: pytest.FixtureRequest) -> Settings:
    return settings.model_copy(update={"relay_encrypt_text": request.param})


def buttons_of(response: dict[str, Any]) -> list[str]:
    return [button["messageText"] for button in response["template"].get("quickReplies", [])]


async def send_response(bot: Bot, name: str, response: dict[str, Any]) -> dict[str, Any]:
    """Reply to a new message; returns what was posted to its callback."""
    message = await bot.insert_message(name)
    await bot.hub.relay.replies.send(
        BotReply(digest(bot.owner.token), message, None, response, encode_skill_response(response))
    )
    [posted] = bot.kakao.responses(name)
    return posted


async def test_three_late_replies_are_fetched_with_the_button(bot: Bot, web: httpx2.AsyncClient) -> None:
    for number in (1, 2, 3):
        await bot.send_late_reply(f"{number}a", f"{number}b")

    posted = await send_response(bot, "first", skill_response("now"))
    pressed = [await send_message(web, BUTTON) for _ in range(2)]

    assert [*map(text_of, [posted, *pressed])] == ["1a\n1b\nnow", "2a\n2b", "3a\n3b"]
    assert [*map(buttons_of, [posted, *pressed])] == [[BUTTON], [BUTTON], []]


async def test_an_answer_that_leaves_no_room_for_late_replies_carries_the_button(bot: Bot) -> None:
    await bot.send_late_reply("late")

    assert buttons_of(await send_response(bot, "first", skill_response("a", "b", "c"))) == [BUTTON]
    assert buttons_of(await send_response(bot, "second", skill_response("now"))) == []  # it showed the last one


@pytest.mark.parametrize(("count", "shown"), [(2, [BUTTON]), (10, [])], ids=["with room", "full"])
async def test_the_bots_own_quick_replies_stay(bot: Bot, count: int, shown: list[str]) -> None:
    own = [{"label": f"{number}", "action": "message", "messageText": f"{number}"} for number in range(count)]
    await bot.send_late_reply("one", "two", "three")
    response = skill_response("now")
    response["template"]["quickReplies"] = own

    posted = await send_response(bot, "first", response)

    assert buttons_of(posted) == [button["messageText"] for button in own] + shown


async def test_a_response_without_outputs_gets_no_button(bot: Bot) -> None:
    await bot.send_late_reply("late")
    response = {"version": "2.0", "data": {"key": "value"}}

    assert await send_response(bot, "first", response) == response


async def test_an_answer_in_the_webhook_carries_the_button(
    hub: Hub, chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held, "HOLD_WINDOW", timedelta(minutes=1))
    monkeypatch.setattr(handle, "WEBHOOK_TIMEOUT", 60.0)
    async with held_chat(hub, chat) as user:
        late = [await chat.message(user.owner, "channel:user", None) for _ in range(3)]
        for message in late:
            with pytest.raises(CallbackExpired):
                await user.reply(message, "one", "two")
        webhook = user.start("hi")
        while (message := await user.next_message()) in late:
            continue

        await user.reply(message, "hello")
        responses = [await webhook, *[await user.start(BUTTON, eventId=press) for press in ("first", "second")]]

        assert [*map(text_of, responses)] == ["one\ntwo\nhello", "one\ntwo", "one\ntwo"]
        assert [*map(buttons_of, responses)] == [[BUTTON], [BUTTON], []]


@pytest.mark.usefixtures("stopped_clock")
async def test_a_reply_that_waited_for_the_rate_limit_carries_the_button(
    bot: Bot, travel: Travel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pabal.relay.reply.send.REPLY_HOLD", 0)
    await bot.send_late_reply("one", "two", "three")
    await bot.chat.db.execute("update accounts set rate_limit_per_minute = 1")
    await bot.send_block(await bot.insert_message("first"), "hello")
    assert bot.kakao.posts == 0

    await travel(timedelta(seconds=50))
    await poll_once(bot)

    [posted] = bot.kakao.responses("first")
    assert (text_of(posted), buttons_of(posted)) == ("hello", [BUTTON])


@pytest.mark.parametrize(("count", "shown"), [(2, [BUTTON]), (10, [])], ids=["with room", "full"])
@pytest.mark.usefixtures("stopped_clock")
async def test_the_own_quick_replies_of_a_reply_that_waited_stay(
    bot: Bot, travel: Travel, monkeypatch: pytest.MonkeyPatch, count: int, shown: list[str]
) -> None:
    monkeypatch.setattr("pabal.relay.reply.send.REPLY_HOLD", 0)
    await bot.send_late_reply("one", "two", "three")
    await bot.chat.db.execute("update accounts set rate_limit_per_minute = 1")
    message, response = await bot.insert_message("first"), skill_response("hello")
    own = [{"label": f"{number}", "action": "message", "messageText": f"{number}"} for number in range(count)]
    response["template"]["quickReplies"] = own
    await bot.hub.relay.replies.send(
        BotReply(digest(bot.owner.token), message, None, response, encode_skill_response(response))
    )

    await travel(timedelta(seconds=50))
    await poll_once(bot)

    [posted] = bot.kakao.responses("first")
    assert buttons_of(posted) == [button["messageText"] for button in own] + shown


async def test_a_reply_whose_claim_was_not_answered_carries_the_button(
    bot: Bot, settings: Settings, database_urls: DatabaseUrls
) -> None:
    await bot.send_late_reply("one", "two", "three")
    message, response = await bot.insert_message("first"), skill_response("hello")
    reply = BotReply(digest(bot.owner.token), message, None, response, encode_skill_response(response))
    async with losing_answers(database_urls.main) as (proxy, url):
        proxy.lose_answers(reply_module.Q.claim_callbacks)
        async with open_hub(settings, DatabaseUrls(url, database_urls.direct)) as hub:
            await hub.relay.replies.send(reply)

    [posted] = bot.kakao.responses("first")
    assert (proxy.lost, buttons_of(posted)) == (1, [BUTTON])
