"""Serve the fake Kakao, Discord and webhook receivers, and simulate a chat user."""

import asyncio
import socket
import time
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from itertools import cycle

import uvicorn
from starlette.applications import Starlette
from starlette.routing import BaseRoute, Mount
from starlette.types import ASGIApp

from pabal.demo.bot import EchoBot
from pabal.demo.discord import FakeDiscord
from pabal.demo.kakao import FakeKakao
from pabal.demo.page import CALLBACK_PATH, demo_chat_app
from pabal.demo.shop import FakeReceivers
from pabal.web.server.server import WebServer

DISCORD_PATH, RECEIVERS_PATH, DASHBOARD_PATH = "/discord", "/receivers", "/dashboard"


@asynccontextmanager
async def serve_fake_kakao(
    listener: socket.socket,
    hub: str,
    skill_headers: dict[str, str],
    *,
    has_bot: bool,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncGenerator[FakeKakao]:
    """Serve the fake Kakao with its chat page. `hub` is the URL of its skill server."""
    kakao = FakeKakao(hub, listener_url(listener) + CALLBACK_PATH, skill_headers, clock)
    async with serve_demo_app(demo_chat_app(kakao, hub, has_bot=has_bot), listener):
        try:
            yield kakao
        finally:
            await kakao.shut_down()


@asynccontextmanager
async def serve_fakes(listener: socket.socket, dashboard: Sequence[BaseRoute] = ()) -> AsyncGenerator[None]:
    """Serve the fake Discord, the webhook receivers and the shop's dashboard on one port."""
    app = Starlette(
        routes=[
            Mount(DISCORD_PATH, routes=FakeDiscord().routes()),
            Mount(RECEIVERS_PATH, routes=FakeReceivers().routes()),
            Mount(DASHBOARD_PATH, routes=dashboard),
        ]
    )
    async with serve_demo_app(app, listener):
        yield


@asynccontextmanager
async def serve_demo_app(app: ASGIApp, listener: socket.socket) -> AsyncGenerator[None]:
    server = WebServer(
        uvicorn.Config(
            app,
            loop="none",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=1,
        )
    )
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield
    finally:
        server.stop()
        await task


def listener_url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{host}:{port}"


VISITOR_USER = "sample-visitor"
LINE_INTERVAL = 12.0
"""Seconds between two messages."""
PAIR_RETRY_SECONDS = 1.0
VISITOR_LINES = (
    ("안녕하세요", "ko"),
    ("오늘 배송 되나요?", "ko"),
    ("카드", "ko"),
    ("Do you ship to Busan?", "en"),
    ("천천히", "ko"),
)


class DemoVisitor:
    """A simulated user who chats with a bot of their own."""

    def __init__(self, hub: str, kakao: FakeKakao) -> None:
        self._kakao = kakao
        self._bot = EchoBot(hub, self._on_code)
        self._code: str | None = None
        self._is_paired = False

    async def run(self) -> None:
        """Pair, then chat until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._bot.run())
            await self._kakao.send_message(
                VISITOR_USER, "/unpair"
            )  # a kept database may still have the pairing of an earlier run
            while not self._is_paired:
                if self._code is not None:
                    await self._kakao.send_message(VISITOR_USER, f"/pair {self._code}")
                await asyncio.sleep(PAIR_RETRY_SECONDS)
            for line, language in cycle(VISITOR_LINES):
                await self._kakao.send_message(VISITOR_USER, line, language)
                await asyncio.sleep(LINE_INTERVAL)

    def _on_code(self, code: str | None, paired: Collection[str]) -> None:
        self._code, self._is_paired = code, VISITOR_USER in paired
