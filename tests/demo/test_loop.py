"""The whole loop: chat page, webhook, stream, bot, reply, callback, chat page."""

import httpx2
import pytest

from pabal.db.queries import parse_queries
from pabal.demo.bot import EchoBot
from pabal.hub import Hub
from pabal.relay.webhook.skill_response import chat_texts
from support.demo import USER, Play
from support.wait import until

pytestmark = pytest.mark.anyio

[KEPT] = parse_queries("""
-- name: kept
select count(*) from public.relay_replies where state = 'late'
""")


async def test_a_person_pairs_and_is_echoed(play: Play, bot: EchoBot) -> None:
    async with httpx2.AsyncClient(base_url=play.page) as page:
        await page.post(f"/chats/{USER}", json={"text": "hello?", "language": "en"})
        assert play.heard()[0].startswith("You are not connected to a bot yet.")
        await play.pair()
        await page.post(f"/chats/{USER}", json={"text": "line one\nline\u2028two", "language": "en"})
    await play.hears("Echo: line one\nline\u2028two")

    assert play.heard()[1].startswith("Connected!")
    last = play.kakao.chat(USER).entries[-1]
    assert [reply["label"] for reply in last["quickReplies"]] == ["card", "slowly"]


async def test_it_shows_a_card_and_speaks_korean(play: Play, bot: EchoBot) -> None:
    await play.pair()
    await play.kakao.send_message(USER, "카드", "ko")
    await until(lambda: "textCard" in str(play.kakao.chat(USER).entries[-1]))
    await play.kakao.send_message(USER, "안녕", "ko")
    await play.hears("메아리: 안녕")


async def test_two_people_have_a_session_each(play: Play, bot: EchoBot) -> None:
    first = await play.pair()
    await until(lambda: play.code not in {None, first})
    await play.pair("somebody-2")

    await play.kakao.send_message(USER, "from the first", "en")
    await play.kakao.send_message("somebody-2", "from the second", "en")
    await play.hears("Echo: from the first")
    await play.hears("Echo: from the second", "somebody-2")
    assert "Echo: from the second" not in play.heard()


async def test_who_leaves_is_offered_a_code_again(play: Play, bot: EchoBot) -> None:
    await play.pair()
    await play.kakao.send_message(USER, "/unpair")
    await until(lambda: USER not in play.paired)

    await play.pair()
    await play.kakao.send_message(USER, "back", "en")
    await play.hears("Echo: back")


async def test_a_slow_answer_is_promised_and_then_shown_first(hub: Hub, play: Play, bot: EchoBot, labour: None) -> None:
    await play.pair()
    await play.kakao.send_message(USER, "slowly", "en")
    await play.hears(chat_texts("en").still_working)
    play.thought.set()

    async def is_kept() -> bool:
        async with hub.autocommit() as tx:
            return await tx.value(KEPT) == 1

    await until(is_kept)
    await play.kakao.send_message(USER, "well?", "en")
    await play.hears("Echo: well?")
    late, echo = play.shown()[-1]
    assert late["simpleText"]["text"] == "This is the answer I took my time for."
    assert echo["simpleText"]["text"] == "Echo: well?"


async def test_a_stream_that_ends_is_resumed_and_nothing_is_answered_twice(hub: Hub, play: Play, bot: EchoBot) -> None:
    await play.pair()
    expected: list[str] = []
    for number in range(3):
        await play.kakao.send_message(USER, f"message {number}", "en")
        hub.relay.stream_registry.close_all()
        expected.append(f"Echo: message {number}")
        await play.hears(expected[-1])

    await play.kakao.send_message(USER, "the last", "en")
    await play.hears("Echo: the last")
    assert [text for text in play.heard() if text.startswith("Echo: ")] == [*expected, "Echo: the last"]
