"""A demo in the test process: a real hub, the fake Kakao, and on request a bot."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from pabal.demo.bot import EchoBot
from pabal.demo.run import listener_url, serve_fake_kakao
from pabal.hub import Hub
from pabal.hub_workers import build_workers
from pabal.settings import Settings
from support.demo import RunningDemo
from support.server import serve_hub
from support.webhook import WEBHOOK_HEADERS, WEBHOOK_SECRET


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(
        _env_file=None,  # pyright: ignore[reportCallIssue]
        data_dir=tmp_path,
        chat_language="en",
        callback_allow=["http://127.0.0.1"],
        webhook_secret=WEBHOOK_SECRET,
        waiting_text="Hm …",
        still_working_after="200ms",  # pyright: ignore[reportArgumentType]
    )


@pytest.fixture
async def demo(hub: Hub) -> AsyncGenerator[RunningDemo]:
    async with AsyncExitStack() as stack:
        hub_address = await stack.enter_async_context(serve_hub(hub))
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        kakao = await stack.enter_async_context(serve_fake_kakao(listener, hub_address, WEBHOOK_HEADERS, has_bot=True))
        yield RunningDemo(hub_address, kakao, listener_url(listener))


@pytest.fixture
async def bot(demo: RunningDemo) -> AsyncGenerator[EchoBot]:
    """A running bot."""
    joined = EchoBot(demo.hub, demo.announce, demo.may_answer.wait)
    task = asyncio.create_task(joined.run())
    yield joined
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def running_workers(hub: Hub) -> AsyncGenerator[None]:
    """Run the hub's workers."""
    workers = build_workers(hub)
    tasks = [asyncio.create_task(worker.run()) for worker in workers]
    try:
        yield
    finally:
        for worker in workers:
            worker.stop()
        await asyncio.gather(*tasks)


@pytest.fixture
async def workers(hub: Hub) -> AsyncGenerator[None]:
    async with running_workers(hub):
        yield
