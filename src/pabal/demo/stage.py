"""Puts characters on: each is served on a port of its own, and leaves when the play is over."""

import asyncio
import socket
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import ASGIApp

from pabal.api.server import WebServer
from pabal.demo.discord import FakeDiscord
from pabal.demo.flaky import FakeReceivers
from pabal.demo.kakao import FakeKakao
from pabal.demo.page import CALLBACK_PATH, demo_chat_app

DISCORD_PATH, RECEIVERS_PATH = "/discord", "/receivers"


@asynccontextmanager
async def serve_fake_kakao(
    listener: socket.socket, hub: str, *, has_bot: bool, clock: Callable[[], float] = time.monotonic
) -> AsyncGenerator[FakeKakao]:
    """Kakao with its chat page, which knows the hub at `hub` as its skill server."""
    here = listener_url(listener)
    kakao = FakeKakao(hub, here + CALLBACK_PATH, clock)
    async with serve_demo_app(demo_chat_app(kakao, hub, has_bot=has_bot), listener):
        try:
            yield kakao
        finally:
            await kakao.shut_down()


@asynccontextmanager
async def serve_fakes(listener: socket.socket) -> AsyncGenerator[None]:
    """Discord and other people's receivers, all behind one port."""
    app = Starlette(
        routes=[
            Mount(DISCORD_PATH, routes=FakeDiscord().routes()),
            Mount(RECEIVERS_PATH, routes=FakeReceivers().routes()),
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
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield
    finally:
        server.stop()
        await serving


def listener_url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{host}:{port}"
