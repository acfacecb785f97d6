"""A bot on a real hub: every message starts at most one turn, and its reply reaches the user."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
import pytest

from client.connections import LossyProxy
from pabal.hub import DatabaseUrls, Hub
from pabal.relay.accounts import disable_account
from pabal.settings import Settings
from pabal_client import AuthenticationError, Bot, ChatMessage, PermissionDeniedError, bot
from pabal_client.relay_requests import EventParser
from relay.people import TESTER
from relay.skills import send_message, text_of
from support.clusters import open_connection
from support.fake_kakao import FakeKakao, run_fake_kakao
from support.receiver import hang, respond_with, run_receiver
from support.relay_rows import Chat, Owner, skill_response
from support.wait import wait_until

pytestmark = pytest.mark.anyio

NUMBERS = count(1)


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"callback_allow": ["http://127.0.0.1"]})


@pytest.fixture
async def fake_kakao() -> AsyncGenerator[FakeKakao]:
    async with run_fake_kakao() as server:
        yield server


@pytest.fixture
async def chat(database_urls: DatabaseUrls) -> AsyncGenerator[Chat]:
    assert database_urls.direct
    async with open_connection(database_urls.direct) as db:
        yield Chat(db)


@pytest.fixture
async def owner(chat: Chat) -> Owner:
    """An account with two users."""
    owner = await chat.owner()
    for user in ("mina", "jun"):
        await chat.conversation(owner, user)
    return owner


class User:
    """A user who writes to the bot, and the replies that Kakao gets."""

    def __init__(self, web: httpx2.AsyncClient, fake_kakao: FakeKakao, name: str) -> None:
        self.name = name
        self._web = web
        self._kakao = fake_kakao

    async def write(self, text: str) -> str:
        """Send a message; returns the name of its callback."""
        callback = f"{self.name}-{next(NUMBERS)}"
        await send_message(self._web, text, self.name, callbackUrl=self._kakao.url(callback))
        return callback

    async def reply(self, callback: str) -> list[str]:
        """Wait for the reply to a message."""
        await wait_until(lambda: bool(self._kakao.texts(callback)))
        [texts] = self._kakao.texts(callback)
        return texts


@pytest.fixture
def mina(web: httpx2.AsyncClient, fake_kakao: FakeKakao) -> User:
    return User(web, fake_kakao, "mina")


@pytest.fixture
def jun(web: httpx2.AsyncClient, fake_kakao: FakeKakao) -> User:
    return User(web, fake_kakao, "jun")


@asynccontextmanager
async def serving(chatbot: Bot) -> AsyncGenerator["asyncio.Task[None]"]:
    """Serve until the end of the block; cancelling the task is a crash."""
    stop = asyncio.Event()
    task = asyncio.create_task(chatbot.serve(stop))
    try:
        yield task
    finally:
        stop.set()
        with suppress(asyncio.CancelledError):
            await task


async def wait_for_stream(chat: Chat) -> None:
    async def is_open() -> bool:
        return await chat.db.fetchval("select count(*) from relay_streams") == 1

    await wait_until(is_open)


def echo(message: ChatMessage) -> str:
    return f"you said {message.text}"


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
        await send_message(web, f"/pair {await codes.get()}", "mina")
        reply = await mina.reply(await mina.write("hello"))

    assert reply == ["you said hello"]
    assert token_file.read_text().strip() != "0" * 64


async def test_a_bot_that_crashes_in_a_turn_does_not_start_it_again(
    web: httpx2.AsyncClient, owner: Owner, mina: User
) -> None:
    turns: list[str] = []
    started = asyncio.Event()
    crashing, next_bot = Bot(str(web.base_url), token=owner.token), Bot(str(web.base_url), token=owner.token)

    @crashing.message
    async def crash(message: ChatMessage) -> None:
        turns.append(message.text)
        started.set()
        await asyncio.Event().wait()

    @next_bot.message
    async def answer(message: ChatMessage) -> str:
        turns.append(message.text)
        return "done"

    async with serving(crashing) as task:
        await mina.write("first")
        await started.wait()
        task.cancel()
    async with serving(next_bot):
        await mina.reply(await mina.write("second"))

    assert turns == ["first", "second"]


async def test_a_reconnect_does_not_start_a_turn_again(
    owner: Owner, mina: User, line: tuple[LossyProxy, str], caplog: pytest.LogCaptureFixture
) -> None:
    proxy, address = line
    turns: list[str] = []
    started, release = asyncio.Event(), asyncio.Event()
    chatbot = Bot(address, token=owner.token)

    @chatbot.message
    async def answer(message: ChatMessage) -> str:
        turns.append(message.text)
        started.set()
        await release.wait()
        return "done"

    async with serving(chatbot):
        first = await mina.write("first")
        await started.wait()
        second = await mina.write("second")
        proxy.reset()
        await wait_until(lambda: "stream disconnected" in caplog.text)
        release.set()
        replies = [await mina.reply(callback) for callback in (first, second)]

    assert replies == [["done"], ["done"]]
    assert turns == ["first", "second"]


async def test_a_lost_acknowledgement_starts_one_turn(
    web: httpx2.AsyncClient, owner: Owner, mina: User, line: tuple[LossyProxy, str]
) -> None:
    proxy, address = line
    turns: list[str] = []
    chatbot = Bot(address, token=owner.token)

    @chatbot.message
    async def answer(message: ChatMessage) -> str:
        turns.append(message.text)
        return "done"

    async with serving(chatbot):
        await mina.reply(await mina.write("first"))
        proxy.lose = 1
        reply = await mina.reply(await mina.write("second"))

    assert proxy.lose == 0
    assert reply == ["done"]
    assert turns == ["first", "second"]


async def test_conversations_run_at_once_and_each_in_order(
    web: httpx2.AsyncClient, owner: Owner, mina: User, jun: User
) -> None:
    running, turns, release = set[str](), list[str](), asyncio.Event()
    chatbot = Bot(str(web.base_url), token=owner.token)

    @chatbot.message
    async def answer(message: ChatMessage) -> str:
        assert message.user_id not in running
        running.add(message.user_id)
        if len(running) == 2:
            release.set()
        await release.wait()
        turns.append(message.text)
        running.discard(message.user_id)
        return message.text

    async with serving(chatbot):
        callbacks = [await mina.write(f"{number}") for number in range(3)]
        await jun.write("hello")
        replies = [await mina.reply(callback) for callback in callbacks]

    assert replies == [["0"], ["1"], ["2"]]
    assert [turn for turn in turns if turn != "hello"] == ["0", "1", "2"]


async def test_messages_without_a_turn_stay_queued_when_the_bot_stops(
    web: httpx2.AsyncClient, owner: Owner, chat: Chat, mina: User, jun: User
) -> None:
    started = asyncio.Event()
    busy = Bot(str(web.base_url), token=owner.token, concurrency=1, grace=0.1)

    @busy.message
    async def think(_message: ChatMessage) -> None:
        started.set()
        await asyncio.Event().wait()

    async def is_delivered() -> bool:
        return await chat.db.fetchval("select count(*) from inbound_messages where status = 'DELIVERED'") == 1

    async with serving(busy):
        await mina.write("first")
        await started.wait()
        waiting = await jun.write("second")
        await wait_until(is_delivered)
    next_bot = Bot(str(web.base_url), token=owner.token)
    next_bot.message(echo)
    async with serving(next_bot):
        reply = await jun.reply(waiting)

    assert reply == ["you said second"]


async def test_a_message_that_another_process_took_starts_no_turn(
    web: httpx2.AsyncClient, owner: Owner, chat: Chat, mina: User, jun: User
) -> None:
    turns: list[str] = []
    started, release = asyncio.Event(), asyncio.Event()
    chatbot = Bot(str(web.base_url), token=owner.token, concurrency=1)

    @chatbot.message
    async def answer(message: ChatMessage) -> str:
        turns.append(message.text)
        started.set()
        await release.wait()
        return message.text

    async def is_delivered() -> bool:
        return await chat.db.fetchval("select count(*) from inbound_messages where status = 'DELIVERED'") == 1

    async with serving(chatbot):
        await mina.write("first")
        await started.wait()
        await jun.write("taken")
        await wait_until(is_delivered)
        ids = await chat.db.fetchval("select array_agg(id::text) from inbound_messages where status = 'DELIVERED'")
        await web.post("/v1/messages/ack", json={"messageIds": ids}, headers=owner.header)
        release.set()
        await jun.reply(await jun.write("last"))

    assert turns == ["first", "last"]


async def test_a_failed_turn_is_answered_with_the_error_text(
    web: httpx2.AsyncClient, owner: Owner, mina: User, caplog: pytest.LogCaptureFixture
) -> None:
    chatbot = Bot(str(web.base_url), token=owner.token, error_text="try again")

    @chatbot.message
    def answer(message: ChatMessage) -> object:
        if message.text == "not json":
            return object()
        raise ValueError("out of ideas")

    async with serving(chatbot):
        await mina.write("not json")
        reply = await mina.reply(await mina.write("hello"))

    assert reply == ["try again"]
    assert "out of ideas" in caplog.text
    assert "message not answered" in caplog.text


async def test_a_late_reply_is_kept(
    web: httpx2.AsyncClient,
    owner: Owner,
    mina: User,
    travel: Callable[[timedelta], Awaitable[None]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "pabal_client")
    chatbot = Bot(str(web.base_url), token=owner.token)

    @chatbot.message
    async def answer(message: ChatMessage) -> str:
        if message.text == "slow":
            await travel(timedelta(minutes=1))
        return f"re: {message.text}"

    async with serving(chatbot):
        await mina.write("slow")
        await wait_until(lambda: "reply kept" in caplog.text)
        reply = await mina.reply(await mina.write("fast"))

    assert reply == ["re: slow", "re: fast"]


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
