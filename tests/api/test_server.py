"""A web server that is told to stop: at once when nobody is there, after the last answer when somebody is."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from time import perf_counter

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from pabal.web.server import WebServer

pytestmark = pytest.mark.anyio

PAUSES = 0.1
"""Seconds that uvicorn takes at the least."""
TRIES = 10
"""Stops of which the quickest counts: what the others waited for is somebody else's work on this machine."""

PATIENCE = 20


class House:
    """A server with one slow room."""

    def __init__(self, within: int) -> None:
        self.entered, self.leave = asyncio.Event(), asyncio.Event()
        self.gone = False
        app = Starlette(routes=[Route("/", self.room)])
        config = uvicorn.Config(
            app, loop="none", lifespan="off", log_config=None, access_log=False, timeout_graceful_shutdown=within
        )
        self.server = WebServer(config)
        self.port = 0

    async def room(self, _request: Request) -> Response:
        self.entered.set()
        try:
            await self.leave.wait()
        except asyncio.CancelledError:
            self.gone = True
            raise
        return PlainTextResponse("seen")

    async def visit(self) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(b"GET / HTTP/1.1\r\nhost: house\r\n\r\n")
        try:
            return await reader.read()
        finally:
            writer.close()


@asynccontextmanager
async def opened(within: int = 10) -> AsyncGenerator[tuple[House, "asyncio.Task[None]"]]:
    house = House(within)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        house.port = listener.getsockname()[1]
        serving = asyncio.create_task(house.server.serve(sockets=[listener]))
        async with asyncio.timeout(PATIENCE):
            yield house, serving
            house.server.stop()
            await serving


async def test_it_stops_at_once_though_somebody_keeps_a_connection() -> None:
    took: list[float] = []
    while len(took) < TRIES and min(took, default=PAUSES) >= PAUSES:
        async with opened() as (house, serving):
            house.leave.set()
            reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
            writer.write(b"GET / HTTP/1.1\r\nhost: house\r\n\r\n")
            assert b"200" in await reader.readline()
            began = perf_counter()
            house.server.stop()
            await serving
            took.append(perf_counter() - began)
            assert (await reader.read()).endswith(b"seen")
            writer.close()

    assert min(took) < PAUSES


async def test_who_is_being_answered_is_waited_for_and_nobody_else_comes_in() -> None:
    async with opened() as (house, serving):
        visit = asyncio.create_task(house.visit())
        await house.entered.wait()
        house.server.stop()
        with pytest.raises(OSError, match=r"refused|reset"):
            while True:
                _, writer = await asyncio.open_connection("127.0.0.1", house.port)
                writer.close()
        assert not serving.done()
        house.leave.set()
        await serving

        assert (await visit).endswith(b"seen")


async def test_but_not_for_longer_than_the_settings_say() -> None:
    async with opened(within=1) as (house, serving):
        visit = asyncio.create_task(house.visit())
        await house.entered.wait()
        house.server.stop()
        await serving
        await asyncio.gather(visit, return_exceptions=True)

    assert house.gone
