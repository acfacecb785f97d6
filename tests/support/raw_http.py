"""HTTP as bytes on a socket, and a small server to send it to."""

import asyncio
import re
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from pabal.web.request import mark_authenticated
from pabal.web.server.connections import ConnectionLimits
from pabal.web.server.protocol import LimitedHttpProtocol
from pabal.web.server.server import WebServer
from support.wait import wait_until

PATIENCE = 60.0
LARGE_BYTES = 4_000_000
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")


def get(path: str = "/", *headers: str) -> bytes:
    """A GET request with a Host header."""
    return "\r\n".join([f"GET {path} HTTP/1.1", "host: hub", *headers, "", ""]).encode()


def statuses(response: bytes) -> list[int]:
    return [int(status) for status in STATUS.findall(response)]


class RawClient:
    """One connection to a server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.writer.write(piece)

    def pause_reading(self) -> None:
        """Stop taking what the server sends."""
        cast("asyncio.Transport", self.writer.transport).pause_reading()

    async def response_head(self) -> bytes:
        async with asyncio.timeout(PATIENCE):
            return await self.reader.readuntil(b"\r\n\r\n")

    async def until_closed(self) -> bytes:
        """Everything the server sends before it closes the connection."""
        parts: list[bytes] = []
        try:
            async with asyncio.timeout(PATIENCE):
                while part := await self.reader.read(1 << 16):
                    parts.append(part)
        except ConnectionResetError:
            pass
        return b"".join(parts)


@asynccontextmanager
async def raw_client(port: int, address: str = "127.0.0.1") -> AsyncGenerator[RawClient]:
    """A connection from this loopback address."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
    try:
        yield RawClient(reader, writer)
    finally:
        writer.transport.abort()


async def exchange(port: int, *pieces: bytes) -> bytes:
    """Send the pieces and read until the server closes the connection."""
    async with raw_client(port) as client:
        client.send(*pieces)
        return await client.until_closed()


@dataclass
class EdgeServer:
    """The hub's web server with a small application. Time passes when `sweep` is called."""

    port: int
    server: WebServer
    release: asyncio.Event = field(default_factory=asyncio.Event)
    handled: list[str] = field(default_factory=list[str])
    disconnects: int = 0

    @property
    def connections(self) -> list[LimitedHttpProtocol]:
        connections = self.server.server_state.connections
        return [connection for connection in connections if isinstance(connection, LimitedHttpProtocol)]

    def sweep(self, seconds: float = 0.0) -> None:
        """Check all timeouts as if the seconds had passed."""
        self.server.sweep(asyncio.get_running_loop().time() + seconds)

    async def until_connected(self, count: int) -> None:
        await wait_until(lambda: len(self.connections) == count)

    async def handle(self, request: Request) -> Response:
        self.handled.append(request.url.path)
        match request.url.path:
            case "/wait":
                await self.release.wait()
            case "/authenticated":
                mark_authenticated(request)
            case "/body":
                try:
                    return PlainTextResponse(str(len(await request.body())))
                except ClientDisconnect:
                    self.disconnects += 1
                    raise
            case "/headers":
                await request.body()
                return PlainTextResponse(repr(sorted(request.headers.keys())))
            case "/large":
                return Response(bytes(LARGE_BYTES))
            case _:
                pass
        return PlainTextResponse("ok")


@asynccontextmanager
async def edge_server(limits: ConnectionLimits | None = None) -> AsyncGenerator[EdgeServer]:
    edge: EdgeServer | None = None

    async def handle(request: Request) -> Response:
        assert edge
        return await edge.handle(request)

    app = Starlette(routes=[Route("/{path:path}", handle, methods=["GET", "POST"])])
    config = uvicorn.Config(
        app, loop="none", ws="none", lifespan="off", log_config=None, access_log=False, timeout_graceful_shutdown=1
    )
    server = WebServer(config, limits)
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        edge = EdgeServer(listener.getsockname()[1], server)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield edge
        finally:
            edge.release.set()
            server.stop()
            await task
