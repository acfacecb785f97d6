"""Webhooks that are held open for the bot's answer: one fence, one answer, and none is lost."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from datetime import timedelta
from urllib.parse import urlsplit
from uuid import UUID

import httpx2
import pytest

from pabal.core.errors import CallbackExpired, CallbackUnconfirmed
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.relay.reply import send
from pabal.relay.reply.answer_signals import AnswerSignals, AnswerStep
from pabal.relay.reply.answer_speeds import FAST_ANSWER, MIN_ANSWERS, SLOW_ANSWER
from pabal.relay.reply.send import DeliveredReply
from pabal.relay.webhook import handle, held
from pabal.relay.webhook.skill_response import KOREAN_TEXTS
from pabal.settings import Settings
from pabal.trace.relay import find_message_matches, trace_message
from pabal.web.server import connection
from relay.holding import HeldChat, held_chat
from relay.skills import USE_CALLBACK, post_webhook, skill_payload, text_of
from support.clusters import Connection
from support.fake_kakao import FakeKakao
from support.relay_rows import Chat
from support.server import serve_hub
from support.silent_hop import stop_acknowledging
from support.wait import wait_until

pytestmark = pytest.mark.anyio

LONG = timedelta(minutes=1)
SHORT = timedelta(seconds=0.05)
LARGE_TEXT = 16_000_000


@pytest.fixture(autouse=True)
def _long_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine must not end a wait."""
    monkeypatch.setattr(held, "HOLD_WINDOW", LONG)
    monkeypatch.setattr(held, "MIN_QUICK_HOLD", LONG)
    monkeypatch.setattr(held, "MAX_HOLD", LONG)
    monkeypatch.setattr(handle, "WEBHOOK_TIMEOUT", 60.0)
    monkeypatch.setattr(send, "REPLY_HOLD", 50.0)
    monkeypatch.setattr(send, "REQUEST_TIMEOUT", 60.0)


@pytest.fixture
def _short_hold(monkeypatch: pytest.MonkeyPatch, _long_hold: None) -> None:
    """Webhooks are held, but not for long."""
    monkeypatch.setattr(held, "HOLD_WINDOW", held.WINDOW_MARGIN + SHORT)


@pytest.fixture
async def held_user(hub: Hub, chat: Chat) -> AsyncGenerator[HeldChat]:
    async with held_chat(hub, chat) as user:
        yield user


def lose_signal(self: AnswerSignals, step: AnswerStep, message_id: UUID) -> None:
    del self, step, message_id


async def open_until(db: Connection, message: UUID) -> bool:
    """Whether the message's webhook is held open."""
    return await db.fetchval("select webhook_open_until > pabal.now() from inbound_messages where id = $1", message)


async def test_an_answer_in_time_is_the_response_to_its_webhook(held_user: HeldChat, fake_kakao: FakeKakao) -> None:
    webhook = held_user.start("hi")
    message = await held_user.next_message()

    result = await held_user.reply(message, "hello")

    assert text_of(await webhook) == "hello"
    assert isinstance(result, DeliveredReply)
    row = await held_user.chat.reply(message)
    assert row
    assert (row["state"], row["spent_by"], row["in_webhook"]) == ("sent", "agent", True)
    assert await held_user.chat.status(message) == ("ACKED", "answered")
    assert fake_kakao.posts == 0
    async with held_user.hub.autocommit() as tx:
        [match] = (await find_message_matches(tx, str(message), None)).values()
        trace = await trace_message(tx, match, None)
    assert [entry.says for entry in trace.entries[2:]] == [
        f"replied in the webhook's response: reply {result.reply_id}",
        "Kakao accepted the reply",
    ]


async def test_the_answer_may_come_to_another_process(
    held_user: HeldChat, settings: Settings, database_urls: DatabaseUrls
) -> None:
    async with open_hub(settings, database_urls) as other_hub:
        await wait_until(lambda: other_hub.doorbell.listening and held_user.hub.doorbell.listening)
        webhook = held_user.start("hi")
        message = await held_user.next_message()
        await held_user.wait_until_held()

        result = await held_user.reply(message, "from afar", hub=other_hub)

        assert text_of(await webhook) == "from afar"
        assert isinstance(result, DeliveredReply)


async def test_of_two_racing_replies_one_is_the_answer_and_none_is_lost(
    held_user: HeldChat, settings: Settings, database_urls: DatabaseUrls
) -> None:
    async with open_hub(settings, database_urls) as other_hub:
        webhook = held_user.start("hi")
        message = await held_user.next_message()
        await held_user.wait_until_held()

        results = await asyncio.gather(held_user.reply(message, "one"), held_user.reply(message, "two", hub=other_hub))

        shown = text_of(await webhook).split("\n")
        assert 1 <= len(shown) <= 2
        assert any(isinstance(result, DeliveredReply) for result in results)
        rows = await held_user.chat.db.fetch(
            "select response #>> '{template,outputs,0,simpleText,text}' as text, state, shown_at from relay_replies"
        )
        assert {row["text"] for row in rows if row["state"] == "sent" or row["shown_at"]} == {*shown}
        assert {row["text"] for row in rows} == {"one", "two"}
        assert [row["state"] for row in rows].count("sent") == 1


async def test_a_repeated_webhook_gets_the_same_answer_during_the_wait_and_after_it(held_user: HeldChat) -> None:
    payload = skill_payload("hi", callbackUrl=None, eventId="one")
    first = held_user.start_payload(payload)
    message = await held_user.next_message()
    repeat = held_user.start_payload(payload)
    await held_user.wait_until_held(2)

    await held_user.reply(message, "hello")

    assert text_of(await first) == text_of(await repeat) == "hello"
    assert text_of(await held_user.start_payload(payload)) == "hello"
    assert await held_user.chat.db.fetchval("select count(*) from inbound_messages") == 1
    assert await held_user.chat.db.fetchval("select count(*) from relay_replies") == 1


async def test_a_repeated_webhook_at_another_process_gets_the_same_answer_at_once(
    held_user: HeldChat, settings: Settings, database_urls: DatabaseUrls
) -> None:
    """The reply's process does not know that another one waits as well."""
    payload = skill_payload("hi", callbackUrl=None, eventId="one")
    async with (
        open_hub(settings, database_urls) as other_hub,
        serve_hub(other_hub) as address,
        httpx2.AsyncClient(base_url=address, timeout=60) as web,
    ):
        first = held_user.start_payload(payload)
        message = await held_user.next_message()
        await held_user.wait_until_held()
        repeat = asyncio.create_task(post_webhook(web, payload))
        await wait_until(lambda: other_hub.relay.held_webhooks.count == 1)

        await held_user.reply(message, "hello")

        async with asyncio.timeout(10):  # of a minute that webhooks are held in these tests
            assert text_of(await first) == text_of(await repeat) == "hello"


async def test_late_replies_go_along_with_an_answer_in_the_webhook(held_user: HeldChat) -> None:
    old = await held_user.chat.message(held_user.owner, "channel:user", None)
    with pytest.raises(CallbackExpired):
        await held_user.reply(old, "late")
    payload = skill_payload("hi", callbackUrl=None, eventId="one")
    webhook = held_user.start_payload(payload)
    message = await held_user.next_message()
    while message == old:
        message = await held_user.next_message()

    await held_user.reply(message, "hello")

    assert text_of(await webhook) == "late\nhello"
    assert text_of(await held_user.start_payload(payload)) == "late\nhello"


@pytest.mark.usefixtures("_short_hold")
async def test_without_an_answer_in_time_the_user_gets_a_button_that_fetches_it(held_user: HeldChat) -> None:
    payload = skill_payload("hi", callbackUrl=None, eventId="one")
    response = await held_user.start_payload(payload)
    message = await held_user.next_message()

    assert text_of(response) == KOREAN_TEXTS.preparing
    assert [button["messageText"] for button in response["template"]["quickReplies"]] == ["답변 확인"]
    assert not await open_until(held_user.chat.db, message)
    assert text_of(await held_user.start("답변 확인", eventId="two")) == KOREAN_TEXTS.not_ready
    with pytest.raises(CallbackExpired):
        await held_user.reply(message, "hello")
    answer = await held_user.start("답변 확인", eventId="three")
    assert text_of(answer) == "hello"
    assert "quickReplies" not in answer["template"]
    assert await held_user.start("답변 확인", eventId="three") == answer
    assert await held_user.start_payload(payload) == response
    assert await held_user.chat.db.fetchval("select count(*) from inbound_messages") == 1


@pytest.mark.usefixtures("_short_hold")
async def test_the_button_while_nothing_is_outstanding_is_a_message_to_the_bot(held_user: HeldChat) -> None:
    payload = skill_payload("답변 확인", callbackUrl=None, eventId="one")

    first = await held_user.start_payload(payload)

    assert (await held_user.stream.next_message())["normalized"]["text"] == "답변 확인"
    assert text_of(first) == KOREAN_TEXTS.preparing
    assert await held_user.start_payload(payload) == first  # a message, also when it is repeated


async def test_a_button_while_a_callback_is_live_is_a_message_to_the_bot(
    held_user: HeldChat, fake_kakao: FakeKakao
) -> None:
    assert await held_user.start("hi", callbackUrl=fake_kakao.url("first")) == USE_CALLBACK
    assert await held_user.start("답변 확인", callbackUrl=fake_kakao.url("second")) == USE_CALLBACK

    await held_user.stream.next_message()
    assert (await held_user.stream.next_message())["normalized"]["text"] == "답변 확인"


async def test_more_webhooks_than_may_be_held_are_answered_at_once(
    hub: Hub, chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub.relay.held_webhooks, "_max_held_per_account", 2)
    async with held_chat(hub, chat) as user:
        for name in ("a", "b", "c", "d"):
            await chat.conversation(user.owner, name)
        waiting = [user.start("hi", name) for name in ("a", "b")]
        messages = [await user.next_message() for _ in waiting]
        await user.wait_until_held(2)

        assert text_of(await user.start("hi", "c")) == KOREAN_TEXTS.preparing
        assert text_of(await user.start("hi", "c")) == KOREAN_TEXTS.preparing  # its account is known now
        monkeypatch.setattr(hub.relay.held_webhooks, "_max_held", 2)
        monkeypatch.setattr(hub.relay.held_webhooks, "_max_held_per_account", 100)
        assert text_of(await user.start("hi", "d")) == KOREAN_TEXTS.preparing

        for message in messages:
            await user.reply(message, "hello")
        assert [text_of(await webhook) for webhook in waiting] == ["hello", "hello"]
        assert hub.relay.held_webhooks.count == 0


async def test_a_connection_that_broke_under_the_response_is_unknown_and_a_repeat_gets_the_answer(
    held_user: HeldChat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's machine is gone: it acknowledges nothing."""
    monkeypatch.setattr(connection, "ACKNOWLEDGE_TIMEOUT", 0.2)
    payload = skill_payload("hi", callbackUrl=None, eventId="one")
    _, writer = await asyncio.open_connection("127.0.0.1", urlsplit(held_user.address).port)
    held_user.send_raw_webhook(writer, payload)
    message = await held_user.next_message()
    await held_user.wait_until_held()
    stop_acknowledging(writer.get_extra_info("socket"))

    with pytest.raises(CallbackUnconfirmed, match="connection broke"):
        await held_user.reply(message, "hello")

    assert (await held_user.wait_for_outcome(message, "unknown"))["error"] == held.BROKEN_ERROR
    assert await held_user.chat.failures() == ["unknown"]
    assert text_of(await held_user.start_payload(payload)) == "hello"
    assert await held_user.chat.state(message) == "unknown"
    writer.close()


async def test_a_client_that_resets_while_the_response_is_written_is_unknown(held_user: HeldChat) -> None:
    """The response is larger than the buffers between hub and client, and the client reads only its beginning."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", urlsplit(held_user.address).port))
    reader, writer = await asyncio.open_connection(sock=client, limit=1)
    held_user.send_raw_webhook(writer, skill_payload("hi", callbackUrl=None))
    message = await held_user.next_message()
    await held_user.wait_until_held()
    reply = asyncio.create_task(held_user.reply(message, "x" * LARGE_TEXT))
    assert await reader.readexactly(1)

    writer.transport.abort()

    with pytest.raises(CallbackUnconfirmed, match="connection broke"):
        await reply
    assert await held_user.chat.failures() == ["unknown"]


async def test_a_client_that_leaves_during_the_wait_costs_no_answer(held_user: HeldChat) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", urlsplit(held_user.address).port)
    held_user.send_raw_webhook(writer, skill_payload("hi", callbackUrl=None))
    message = await held_user.next_message()
    await held_user.wait_until_held()

    writer.transport.abort()
    await held_user.wait_until_held(0)

    async def is_closed() -> bool:
        return not await open_until(held_user.chat.db, message)

    await wait_until(is_closed)
    with pytest.raises(CallbackExpired):
        await held_user.reply(message, "hello")
    assert text_of(await held_user.start("답변 확인")) == "hello"


async def test_a_fast_bot_answers_in_the_webhook_although_there_is_a_callback(
    held_user: HeldChat, fake_kakao: FakeKakao
) -> None:
    for number in range(MIN_ANSWERS):
        assert await held_user.start("hi", callbackUrl=fake_kakao.url(f"{number}")) == USE_CALLBACK
        await held_user.reply(await held_user.next_message(), "hello")
    assert fake_kakao.posts == MIN_ANSWERS

    webhook = held_user.start("hi", callbackUrl=fake_kakao.url("last"))
    await held_user.wait_until_held()
    await held_user.reply(await held_user.next_message(), "at once")

    assert text_of(await webhook) == "at once"
    assert fake_kakao.posts == MIN_ANSWERS


async def test_a_fast_bot_that_takes_longer_answers_through_the_callback(
    held_user: HeldChat, fake_kakao: FakeKakao, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held, "MIN_QUICK_HOLD", SHORT)
    monkeypatch.setattr(held, "QUICK_HOLD_FACTOR", 0)
    for _ in range(MIN_ANSWERS):
        held_user.hub.relay.replies.speeds.observe(held_user.owner.id, timedelta(seconds=0.1))
    held_user.hub.relay.stream_registry.handover.remember_account("channel:user", held_user.owner.id)

    assert await held_user.start("hi", callbackUrl=fake_kakao.url("late")) == USE_CALLBACK
    message = await held_user.next_message()
    assert await open_until(held_user.chat.db, message) is False  # it was held
    assert isinstance(await held_user.reply(message, "took longer"), DeliveredReply)

    assert fake_kakao.texts("late") == [["took longer"]]
    row = await held_user.chat.reply(message)
    assert row
    assert not row["in_webhook"]


async def test_a_slow_bot_without_a_callback_is_not_waited_for(held_user: HeldChat) -> None:
    for _ in range(MIN_ANSWERS):
        held_user.hub.relay.replies.speeds.observe(held_user.owner.id, SLOW_ANSWER)
    held_user.hub.relay.stream_registry.handover.remember_account("channel:user", held_user.owner.id)

    assert text_of(await held_user.start("hi")) == KOREAN_TEXTS.preparing

    message = await held_user.next_message()
    assert await open_until(held_user.chat.db, message) is None


async def test_a_bot_that_is_not_connected_is_not_waited_for(hub: Hub, chat: Chat) -> None:
    async with held_chat(hub, chat) as user:
        other = await chat.owner()
        await chat.conversation(other, "someone")

        assert text_of(await user.start("hi", "someone")) == KOREAN_TEXTS.preparing


@pytest.mark.parametrize("callback", [True, False], ids=["with callback", "without"])
@pytest.mark.parametrize("mode", ["synchronous", "callback", "held"])
async def test_an_account_chooses_how_its_users_get_answers(
    hub: Hub, chat: Chat, fake_kakao: FakeKakao, mode: str, callback: bool
) -> None:
    async with held_chat(hub, chat, answer_mode=mode) as user:
        for _ in range(MIN_ANSWERS):  # what `auto` would go by
            hub.relay.replies.speeds.observe(user.owner.id, FAST_ANSWER if mode != "synchronous" else SLOW_ANSWER)
        hub.relay.stream_registry.handover.remember_account("channel:user", user.owner.id)
        webhook = user.start("hi", callbackUrl=fake_kakao.url("url") if callback else None)
        message = await user.next_message()
        match mode, callback:
            case "synchronous", _:
                await user.reply(message, "hello")
                assert text_of(await webhook) == "hello"
                assert fake_kakao.posts == 0
            case "callback", True:
                assert await webhook == USE_CALLBACK
                await user.reply(message, "hello")
                assert fake_kakao.texts("url") == [["hello"]]
            case _:
                assert text_of(await webhook) == KOREAN_TEXTS.preparing
                with pytest.raises(CallbackExpired):
                    await user.reply(message, "hello")
                assert text_of(await user.start("답변 확인")) == "hello"
                assert fake_kakao.posts == 0


@pytest.mark.usefixtures("_short_hold")
async def test_a_reply_between_the_end_of_the_wait_and_the_close_is_still_the_answer(
    hub: Hub, chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal is lost: the last look before the webhook is closed finds the reply."""
    monkeypatch.setattr(AnswerSignals, "send", lose_signal)
    monkeypatch.setattr(held, "HOLD_WINDOW", held.WINDOW_MARGIN + timedelta(seconds=3))
    async with held_chat(hub, chat) as user:
        webhook = user.start("hi")
        message = await user.next_message()

        result = await user.reply(message, "hello")

        assert text_of(await webhook) == "hello"
        assert isinstance(result, DeliveredReply)


async def test_a_stop_of_the_hub_ends_the_wait(held_user: HeldChat) -> None:
    webhook = held_user.start("hi")
    await held_user.next_message()
    await held_user.wait_until_held()

    held_user.hub.relay.held_webhooks.release_all()

    assert text_of(await webhook) == KOREAN_TEXTS.preparing
