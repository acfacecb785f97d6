"""Shutdown of the web server: at once when idle, after the last response otherwise."""

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

from pabal.web.server.server import WebServer

pytestmark = pytest.mark.anyio

UVICORN_DELAY = 0.1
"""Seconds that plain uvicorn needs at least."""
MAX_ATTEMPTS = 10
"""Only the fastest shutdown counts: a busy machine delays the others."""

TIMEOUT = 20


class SlowServer:
    """A server with one slow endpoint."""

    def __init__(self, within: int) -> None:
        self.request_started, self.release = asyncio.Event(), asyncio.Event()
        self.cancelled = False
        app = Starlette(routes=[Route("/", self.handle)])
        config = uvicorn.Config(
            app, loop="none", lifespan="off", log_config=None, access_log=False, timeout_graceful_shutdown=within
        )
        self.server = WebServer(config)
        self.port = 0

    async def handle(self, _request: Request) -> Response:
        self.request_started.set()
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return PlainTextResponse("done")

    async def request(self) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(b"GET / HTTP/1.1\r\nhost: slow\r\n\r\n")
        try:
            return await reader.read()
        finally:
            writer.close()


@asynccontextmanager
async def running_server(within: int = 10) -> AsyncGenerator[tuple[SlowServer, "asyncio.Task[None]"]]:
    slow = SlowServer(within)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        slow.port = listener.getsockname()[1]
        serving = asyncio.create_task(slow.server.serve(sockets=[listener]))
        async with asyncio.timeout(TIMEOUT):
            yield slow, serving
            slow.server.stop()
            await serving


async def test_an_idle_connection_does_not_delay_shutdown() -> None:
    shutdown_seconds: list[float] = []
    while len(shutdown_seconds) < MAX_ATTEMPTS and min(shutdown_seconds, default=UVICORN_DELAY) >= UVICORN_DELAY:
        async with running_server() as (slow, serving):
            slow.release.set()
            reader, writer = await asyncio.open_connection("127.0.0.1", slow.port)
            writer.write(b"GET / HTTP/1.1\r\nhost: slow\r\n\r\n")
            assert b"200" in await reader.readline()
            started = perf_counter()
            slow.server.stop()
            await serving
            shutdown_seconds.append(perf_counter() - started)
            assert (await reader.read()).endswith(b"done")
            writer.close()

    assert min(shutdown_seconds) < UVICORN_DELAY


async def test_shutdown_waits_for_running_requests_and_accepts_no_new_ones() -> None:
    async with running_server() as (slow, serving):
        request = asyncio.create_task(slow.request())
        await slow.request_started.wait()
        slow.server.stop()
        with pytest.raises(OSError, match=r"refused|reset"):
            while True:
                _, writer = await asyncio.open_connection("127.0.0.1", slow.port)
                writer.close()
        assert not serving.done()
        slow.release.set()
        await serving

        assert (await request).endswith(b"done")


async def test_shutdown_cancels_requests_after_the_timeout() -> None:
    async with running_server(within=1) as (slow, serving):
        request = asyncio.create_task(slow.request())
        await slow.request_started.wait()
        slow.server.stop()
        await serving
        await asyncio.gather(request, return_exceptions=True)

    assert slow.cancelled


REQUEST = b"GET / HTTP/1.1\r\nhost: slow\r\n\r\n"


async def test_a_replaced_server_answers_an_idle_connection_once_more() -> None:
    async with running_server() as (slow, serving):
        slow.release.set()
        reader, writer = await asyncio.open_connection("127.0.0.1", slow.port)
        writer.write(REQUEST)
        first = await reader.readuntil(b"done")

        slow.server.stop(drain=True)
        with pytest.raises(OSError, match=r"refused|reset"):
            while True:
                _, other = await asyncio.open_connection("127.0.0.1", slow.port)
                other.close()
        assert not serving.done()
        writer.write(REQUEST)

        second = await reader.read()
        await serving
        writer.close()
    assert b"connection: close" not in first
    assert b"connection: close" in second
    assert second.endswith(b"done")


async def test_a_stopping_server_goes_on_and_asks_its_clients_to_close() -> None:
    async with running_server() as (slow, _):
        running = asyncio.create_task(slow.request())
        await slow.request_started.wait()

        slow.server.announce_close()
        later = asyncio.create_task(slow.request())
        slow.release.set()

        assert [b"connection: close" in response for response in (await running, await later)] == [True, True]
