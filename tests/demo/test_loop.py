"""The whole loop: chat page, webhook, stream, bot, reply, callback, chat page."""

import httpx2
import pytest

from pabal.db.queries import parse_queries
from pabal.demo.bot import EchoBot
from pabal.hub import Hub
from pabal.relay.webhook.skill_response import chat_texts
from support.demo import USER, RunningDemo
from support.wait import wait_until

pytestmark = pytest.mark.anyio

[KEPT] = parse_queries("""
-- name: kept
select count(*) from public.relay_replies where state = 'late'
""")


async def test_a_user_pairs_and_gets_an_echo(demo: RunningDemo, bot: EchoBot) -> None:
    async with httpx2.AsyncClient(base_url=demo.page) as page:
        await page.post(f"/chats/{USER}", json={"text": "hello?", "language": "en"})
        assert demo.texts()[0].startswith("You are not connected to a bot yet.")
        await demo.pair()
        await page.post(f"/chats/{USER}", json={"text": "line one\nline\u2028two", "language": "en"})
    await demo.wait_for_text("Echo: line one\nline\u2028two")

    assert demo.texts()[1].startswith("Connected!")
    last = demo.kakao.chat(USER).entries[-1]
    assert [reply["label"] for reply in last["quickReplies"]] == ["card", "slowly"]


async def test_the_bot_sends_a_card_and_speaks_korean(demo: RunningDemo, bot: EchoBot) -> None:
    await demo.pair()
    await demo.kakao.send_message(USER, "카드", "ko")
    await wait_until(lambda: "textCard" in str(demo.kakao.chat(USER).entries[-1]))
    await demo.kakao.send_message(USER, "안녕", "ko")
    await demo.wait_for_text("메아리: 안녕")


async def test_two_users_have_their_own_sessions(demo: RunningDemo, bot: EchoBot) -> None:
    first = await demo.pair()
    await wait_until(lambda: demo.code not in {None, first})
    await demo.pair("demo-user-2")

    await demo.kakao.send_message(USER, "from the first", "en")
    await demo.kakao.send_message("demo-user-2", "from the second", "en")
    await demo.wait_for_text("Echo: from the first")
    await demo.wait_for_text("Echo: from the second", "demo-user-2")
    assert "Echo: from the second" not in demo.texts()


async def test_a_user_who_unpairs_gets_a_new_code(demo: RunningDemo, bot: EchoBot) -> None:
    await demo.pair()
    await demo.kakao.send_message(USER, "/unpair")
    await wait_until(lambda: USER not in demo.paired)

    await demo.pair()
    await demo.kakao.send_message(USER, "back", "en")
    await demo.wait_for_text("Echo: back")


async def test_a_slow_reply_is_announced_and_shown_with_the_next_one(
    hub: Hub, demo: RunningDemo, bot: EchoBot, workers: None
) -> None:
    await demo.pair()
    await demo.kakao.send_message(USER, "slowly", "en")
    await demo.wait_for_text(chat_texts("en").still_working)
    demo.may_answer.set()

    async def is_kept() -> bool:
        async with hub.autocommit() as tx:
            return await tx.value(KEPT) == 1

    await wait_until(is_kept)
    await demo.kakao.send_message(USER, "well?", "en")
    await demo.wait_for_text("Echo: well?")
    late, echo = demo.outputs()[-1]
    assert late["simpleText"]["text"] == "This is the answer I took my time for."
    assert echo["simpleText"]["text"] == "Echo: well?"


async def test_a_stream_resumes_and_answers_nothing_twice(hub: Hub, demo: RunningDemo, bot: EchoBot) -> None:
    await demo.pair()
    expected: list[str] = []
    for number in range(3):
        await demo.kakao.send_message(USER, f"message {number}", "en")
        hub.relay.stream_registry.close_all()
        expected.append(f"Echo: message {number}")
        await demo.wait_for_text(expected[-1])

    await demo.kakao.send_message(USER, "the last", "en")
    await demo.wait_for_text("Echo: the last")
    assert [text for text in demo.texts() if text.startswith("Echo: ")] == [*expected, "Echo: the last"]
