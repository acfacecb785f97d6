"""An HTTP server on loopback that responds as scripted and records every request.

Set what it does with the next requests, send to its `url`, and wait for the requests.
"""

import asyncio
import socket
import ssl
import struct
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from itertools import repeat

RECEIVE_TIMEOUT = 15.0
CHUNK = b"x" * 65536

Responder = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bool]]
"""Responds to a request; returns whether the connection stays open."""


@dataclass(frozen=True, slots=True)
class Request:
    """A received request. `connection` counts from 1."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    at: datetime
    connection: int


def respond_with(
    status: int = 200, body: bytes = b"", headers: Mapping[str, str] | None = None, *, keep: bool = True
) -> Responder:
    """A complete response. `keep=False` closes the connection afterwards without announcing it."""

    async def respond(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        await put(writer, head(status, {"content-length": str(len(body))} | dict(headers or {})) + body)
        return keep

    return respond


def redirect_to(to: str, status: int = 302) -> Responder:
    return respond_with(status, headers={"location": to})


def respond_after(until: asyncio.Event, then: Responder | None = None) -> Responder:
    """Respond only after the event is set."""

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        await until.wait()
        return await (then or respond_with())(reader, writer)

    return respond


async def hang(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> bool:
    """Never respond; the connection stays open until the client closes it."""
    while await reader.read(len(CHUNK)):
        pass
    return False


def hang_after_headers(status: int = 200) -> Responder:
    """Send a status and a content length, then nothing."""

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        await put(writer, head(status, {"content-length": "10"}))
        return await hang(reader, writer)

    return respond


def drip_body(status: int = 200, every: float = 0.01) -> Responder:
    """Send an endless body byte by byte."""

    async def respond(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        await put(writer, head(status, {"transfer-encoding": "chunked"}))
        while True:
            await put(writer, b"1\r\nx\r\n")
            await asyncio.sleep(every)

    return respond


def endless_body(status: int = 200) -> Responder:
    """Send an endless body as fast as the client reads it."""

    async def respond(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        await put(writer, head(status, {"transfer-encoding": "chunked"}))
        for chunk in repeat(b"%x\r\n%b\r\n" % (len(CHUNK), CHUNK)):
            await put(writer, chunk)
        return False

    return respond


def endless_trailers(trailer_bytes: bytes, prefix: bytes = b"") -> Responder:
    """Send a short body and endless trailers as fast as the client reads them."""

    async def respond(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        await put(writer, head(200, {"transfer-encoding": "chunked"}) + b"2\r\nok\r\n0\r\n" + prefix)
        for trailer in repeat(trailer_bytes):
            await put(writer, trailer)
        return False

    return respond


async def close_connection(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> bool:
    """Read the request and close the connection without a response."""
    return False


async def close_early(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> bool:
    """Close at the first byte of the request, which is neither read nor recorded."""
    return False


async def stop_reading(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> bool:
    """Read nothing after the first byte and keep the connection open."""
    await asyncio.Event().wait()
    return False


UNREAD = (close_early, stop_reading)


async def reset_connection(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Read the request and reset the connection."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    return False


def send_raw(raw: bytes) -> Responder:
    """Send these bytes and close the connection."""

    async def respond(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        await put(writer, raw)
        return False

    return respond


async def put(writer: asyncio.StreamWriter, data: bytes) -> None:
    if writer.is_closing():  # uvloop raises on a write after the client closed
        raise ConnectionResetError
    writer.write(data)
    await writer.drain()


def head(status: int, headers: Mapping[str, str]) -> bytes:
    is_standard = status in HTTPStatus.__members__.values()
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase if is_standard else 'Odd'}"]
    return "\r\n".join([*lines, *(f"{name}: {value}" for name, value in headers.items()), "", ""]).encode()


class Receiver:
    """Each entry of `script` responds to one request; then the default responds to all others."""

    def __init__(self) -> None:
        self.responder: Responder = respond_with()
        self.script: deque[Responder] = deque()
        self.requests: list[Request] = []
        self.connections = 0
        self.port = 0
        self.url = ""
        self._news = asyncio.Condition()
        self._open: dict[asyncio.Task[None] | None, asyncio.StreamWriter] = {}

    @property
    def open(self) -> int:
        """The number of open connections."""
        return len(self._open)

    async def wait_for_requests(self, count: int = 1, within: float = RECEIVE_TIMEOUT) -> list[Request]:
        """All requests so far, once there are `many`."""
        async with asyncio.timeout(within), self._news:
            await self._news.wait_for(lambda: len(self.requests) >= count)
            return [*self.requests]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        self._open[asyncio.current_task()] = writer
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while first := await reader.read(1):
                    responder = self.script.popleft() if self.script else self.responder
                    if responder not in UNREAD:
                        await self._remember(await read_request(first, reader, number))
                    if not await responder(reader, writer):
                        break
        finally:
            writer.close()
            with suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()  # so that `open` matches what the client sees
            del self._open[asyncio.current_task()]

    async def _remember(self, request: Request) -> None:
        async with self._news:
            self.requests.append(request)
            self._news.notify_all()

    async def abort_connections(self) -> None:
        """Abort all connections: an orderly TLS shutdown would wait for the client."""
        tasks = [task for task in self._open if task]
        for writer in self._open.values():
            writer.transport.abort()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def read_request(first: bytes, reader: asyncio.StreamReader, connection: int) -> Request:
    lines = (first + await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, target, _version = lines[0].split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(method, target, headers, body, datetime.now(UTC), connection)


@asynccontextmanager
async def run_receiver(tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> AsyncGenerator[Receiver]:
    """Run a receiver on a free port; with `tls` it serves https."""
    server_state = Receiver()
    server = await asyncio.start_server(server_state.serve, host, 0, ssl=tls)
    server_state.port = server.sockets[0].getsockname()[1]
    server_state.url = f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{server_state.port}/hook"
    try:
        yield server_state
    finally:
        server.close()
        await server_state.abort_connections()
        await server.wait_closed()
