"""A bot on a real hub: its replies, its session and its stream."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from client.bot_user import User, echo, serving, wait_for_stream
from pabal.hub import Hub
from pabal.relay.accounts import disable_account
from pabal_client import AuthenticationError, Bot, ChatMessage, PermissionDeniedError, bot
from pabal_client.relay_requests import EventParser
from relay.people import TESTER
from relay.skills import send_message, text_of
from support.fake_kakao import FakeKakao
from support.receiver import hang, respond_with, run_receiver
from support.relay_rows import Chat, Owner, skill_response
from support.wait import wait_until

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("kind", ["async", "sync", "skill"])
async def test_what_the_handler_returns_reaches_the_user(
    web: httpx2.AsyncClient, owner: Owner, mina: User, kind: str
) -> None:
    chatbot = Bot(str(web.base_url), token=owner.token)

    async def echo_later(message: ChatMessage) -> str:
        return echo(message)

    def echo_skill(message: ChatMessage) -> dict[str, Any]:
        return skill_response(echo(message))

    handlers: dict[str, Callable[[ChatMessage], Any]] = {"async": echo_later, "sync": echo, "skill": echo_skill}
    chatbot.message(handlers[kind])
    async with serving(chatbot):
        replies = [await mina.reply(await mina.write(text)) for text in ("hello", "파발")]

    assert replies == [["you said hello"], ["you said 파발"]]


async def test_a_message_has_its_user_deadline_and_payload(
    web: httpx2.AsyncClient, owner: Owner, mina: User, fake_kakao: FakeKakao
) -> None:
    messages: list[ChatMessage] = []
    chatbot = Bot(str(web.base_url), token=owner.token)
    chatbot.message(messages.append)
    async with serving(chatbot):
        await mina.write("hello")
        await wait_until(lambda: bool(messages))

    [message] = messages
    assert (message.user_id, message.conversation_key, message.delivery_count) == ("mina", "channel:mina", 1)
    assert message.kakao_payload["userRequest"]["lang"] == "ko"
    assert message.callback_expires_at is not None
    assert message.created_at is not None
    assert timedelta(seconds=40) < message.callback_expires_at - message.created_at < timedelta(seconds=61)
    assert fake_kakao.posts == 0, "None is no reply"


@pytest.mark.parametrize("callback", ["kept", "none"])
async def test_the_reply_may_be_the_response_to_the_webhook(
    web: httpx2.AsyncClient, owner: Owner, chat: Chat, fake_kakao: FakeKakao, callback: str
) -> None:
    """The acknowledgement does not end the request of Kakao that waits for the reply."""
    await chat.db.execute("update accounts set answer_mode = 'synchronous' where id = $1", owner.id)
    started = asyncio.Event()
    chatbot = Bot(str(web.base_url), token=owner.token)

    @chatbot.message
    async def answer(message: ChatMessage) -> str:
        started.set()
        return echo(message)

    async with serving(chatbot):
        await wait_for_stream(chat)
        url = fake_kakao.url("spare") if callback == "kept" else None
        response = await send_message(web, "hello", "mina", callbackUrl=url)

    assert started.is_set()
    assert text_of(response) == "you said hello"
    assert fake_kakao.posts == 0


async def test_a_bot_without_a_token_pairs_once(
    web: httpx2.AsyncClient, mina: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token_file, codes = tmp_path / "bot.token", asyncio.Queue[str]()

    def new_bot(**options: Any) -> Bot:
        chatbot = Bot(str(web.base_url), token_file=token_file, **options)
        chatbot.message(echo)
        return chatbot

    async with serving(new_bot(show_code=codes.put_nowait)):
        await send_message(web, f"/pair {await codes.get()}", "mina")
        first = await mina.reply(await mina.write("one"))
    async with serving(new_bot()):
        second = await mina.reply(await mina.write("two"))

    assert (first, second) == (["you said one"], ["you said two"])
    assert token_file.stat().st_mode & 0o777 == 0o600
    assert len(token_file.read_text().strip()) == 64
    assert capsys.readouterr().out.count("/pair") == 0, "paired already"


async def test_a_saved_session_that_has_ended_is_replaced(web: httpx2.AsyncClient, mina: User, tmp_path: Path) -> None:
    token_file, codes = tmp_path / "bot.token", asyncio.Queue[str]()
    token_file.write_text("0" * 64)
    chatbot = Bot(str(web.base_url), token_file=token_file, show_code=codes.put_nowait)
    chatbot.message(echo)

    async with serving(chatbot):
        code = await codes.get()
        kept = token_file.read_text()
        await send_message(web, f"/pair {code}", "mina")
        reply = await mina.reply(await mina.write("hello"))

    assert kept == "0" * 64, "a proxy that refuses a token does not delete it"
    assert reply == ["you said hello"]
    assert token_file.read_text().strip() != "0" * 64
    assert token_file.stat().st_mode & 0o777 == 0o600


async def test_a_token_that_cannot_be_saved_does_not_end_the_bot(
    web: httpx2.AsyncClient, mina: User, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    codes = asyncio.Queue[str]()
    chatbot = Bot(str(web.base_url), token_file=tmp_path / "missing" / "bot.token", show_code=codes.put_nowait)
    chatbot.message(echo)

    async with serving(chatbot):
        await send_message(web, f"/pair {await codes.get()}", "mina")
        reply = await mina.reply(await mina.write("hello"))

    assert reply == ["you said hello"]
    assert "token not saved" in caplog.text


def test_a_bot_reconnects_within_limits_whatever_the_hub_asks_for() -> None:
    assert 0.4 <= bot.reconnect_delay(1, None) <= 0.6
    assert 0.4 <= bot.reconnect_delay(1, 0.0) <= 0.6
    assert 5.0 <= bot.reconnect_delay(1, 5.0) <= 7.0
    assert bot.reconnect_delay(1, 86_400.0) < 90.0
    assert 24.0 <= bot.reconnect_delay(100, None) <= 36.0


async def test_a_dead_token_and_a_disabled_account_end_the_bot(
    hub: Hub, web: httpx2.AsyncClient, owner: Owner, caplog: pytest.LogCaptureFixture
) -> None:
    async with hub.transaction() as tx:
        await disable_account(tx, owner.id, TESTER)
    for token, error in (("prt_wrong", AuthenticationError), (owner.token, PermissionDeniedError)):
        chatbot = Bot(str(web.base_url), token=token)
        chatbot.message(print)
        with pytest.raises(error) as raised:
            await chatbot.serve()
        assert token not in str(raised.value) + caplog.text
    with pytest.raises(TypeError, match=r"@bot\.message"):
        await Bot(str(web.base_url)).serve()
    with pytest.raises(TypeError, match="one handler"):
        chatbot.message(print)


async def test_a_silent_stream_is_replaced_and_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bot, "STREAM_SILENCE", 0.05)
    monkeypatch.setattr(bot, "FIRST_RECONNECT", 0.01)
    connected = b'id: 7\nevent: connected\ndata: {"status":"paired"}\n\n'
    async with run_receiver() as fake_hub:
        fake_hub.script += [respond_with(body=connected), hang, respond_with(410)]
        chatbot = Bot(fake_hub.url.removesuffix("/hook"), token="token")
        chatbot.message(print)
        with pytest.raises(AuthenticationError):
            await chatbot.serve()
        streams = [request for request in fake_hub.requests if request.target == "/v1/events"]

    assert [request.headers.get("last-event-id") for request in streams] == [None, "7", "7"]


async def test_a_token_with_a_line_end_is_accepted_and_a_broken_one_is_never_shown(
    web: httpx2.AsyncClient, owner: Owner, mina: User, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chatbot = Bot(str(web.base_url), token=f"{owner.token}\n")
    chatbot.message(echo)
    async with serving(chatbot):
        assert await mina.reply(await mina.write("hello")) == ["you said hello"]
    with pytest.raises(ValueError, match=r"^token: must be printable ASCII") as raised:
        Bot(str(web.base_url), token="two words")
    (tmp_path / "bot.token").write_text("two\nwords")
    from_file = Bot(str(web.base_url), token_file=tmp_path / "bot.token")
    from_file.message(echo)
    with pytest.raises(ValueError, match=r"^token_file: must be printable ASCII"):
        await from_file.serve()

    assert "words" not in str(raised.value) + caplog.text


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_events_are_parsed_across_chunk_boundaries(size: int) -> None:
    text = "가\u2028나"
    wire = (
        f': ping\n\nid: 3\nevent: message\ndata: {{"text":"{text}"}}\n\nretry: 1\n\ndata: {{"a":"b: c"}}\n\n'.encode()
    )
    parser = EventParser()

    events = [event for start in range(0, len(wire), size) for event in parser.feed(wire[start : start + size])]

    assert [(event.name, event.event_id, event.data) for event in events] == [
        ("message", "3", {"text": text}),
        ("message", "", {"a": "b: c"}),
    ]
