"""A user who writes to a bot, and a bot that serves."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from itertools import count

import httpx2

from pabal_client import Bot, ChatMessage
from relay.skills import send_message
from support.fake_kakao import FakeKakao
from support.relay_rows import Chat
from support.wait import wait_until

NUMBERS = count(1)


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
