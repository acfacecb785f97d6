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

from pabal.api.server import Server
from pabal.demo.discord import Discord
from pabal.demo.flaky import Receivers
from pabal.demo.kakao import Kakao
from pabal.demo.page import CALLBACK, application

DISCORD, RECEIVERS = "/discord", "/receivers"


@asynccontextmanager
async def kakao_at(
    listener: socket.socket, hub: str, *, has_bot: bool, clock: Callable[[], float] = time.monotonic
) -> AsyncGenerator[Kakao]:
    """Kakao with its chat page, which knows the hub at `hub` as its skill server."""
    here = address_of(listener)
    kakao = Kakao(hub, here + CALLBACK, clock)
    async with served(application(kakao, hub, has_bot=has_bot), listener):
        try:
            yield kakao
        finally:
            await kakao.leave()


@asynccontextmanager
async def elsewhere_at(listener: socket.socket) -> AsyncGenerator[None]:
    """Discord and other people's receivers, all behind one port."""
    app = Starlette(routes=[Mount(DISCORD, routes=Discord().routes()), Mount(RECEIVERS, routes=Receivers().routes())])
    async with served(app, listener):
        yield


@asynccontextmanager
async def served(app: ASGIApp, listener: socket.socket) -> AsyncGenerator[None]:
    server = Server(
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


def address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{host}:{port}"
