"""Every message starts at most one turn of a bot, in the order of its conversation."""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from datetime import timedelta

import httpx2
import pytest

from client.bot_user import User, echo, serving
from client.connections import LossyProxy
from pabal_client import Bot, ChatMessage
from pabal_client.bot import BotConnection
from pabal_client.relay_requests import MIN_RETRY_DELAY, start_turn_flow
from pabal_client.transport import NO_RESPONSE, Flow, HubResponse, SendRequest, SleepFor
from support.relay_rows import Chat, Owner
from support.wait import wait_until

pytestmark = pytest.mark.anyio


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


async def test_an_acknowledgement_that_was_never_sent_starts_no_turn() -> None:
    """Another process may have acknowledged the message while the hub could not be reached."""

    def send_once() -> Flow[HubResponse]:
        return (yield SendRequest("GET", "/"))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        unused_port = listener.getsockname()[1]
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{unused_port}") as http:
        refused = await BotConnection(http, 5.0).run_flow(send_once())
    results: list[bool] = []
    for failure in (refused, HubResponse(0, {}, b"ReadError")):
        flow = start_turn_flow("token", "1")
        next(flow)
        flow.send(failure)
        flow.send(NO_RESPONSE)
        with pytest.raises(StopIteration) as end:
            flow.send(HubResponse(200, {}, b'{"acknowledged": 0}'))
        results.append(end.value.value)

    assert results == [False, True]


def test_a_bot_never_repeats_a_request_without_a_pause() -> None:
    flow = start_turn_flow("token", "1")
    next(flow)

    assert flow.send(HubResponse(503, {"retry-after": "0"}, b"")) == SleepFor(MIN_RETRY_DELAY)


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


async def test_a_bot_that_serves_again_handles_the_messages_without_a_turn(
    web: httpx2.AsyncClient, owner: Owner, chat: Chat, mina: User, jun: User
) -> None:
    started = asyncio.Event()
    chatbot = Bot(str(web.base_url), token=owner.token, concurrency=1, grace=0.1)

    @chatbot.message
    async def answer(message: ChatMessage) -> str:
        if message.text == "first":
            started.set()
            await asyncio.Event().wait()
        return echo(message)

    async def is_delivered() -> bool:
        return await chat.db.fetchval("select count(*) from inbound_messages where status = 'DELIVERED'") == 1

    async with serving(chatbot):
        await mina.write("first")
        await started.wait()
        waiting = await jun.write("second")
        await wait_until(is_delivered)
    async with serving(chatbot):
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
