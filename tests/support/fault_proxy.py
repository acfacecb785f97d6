"""A network that misbehaves when told to: a TCP proxy in front of PostgreSQL.

It passes bytes on, late if asked, swallows them, or breaks every connection at once. It can also behave like a pooler
towards the settings a session brings along: refuse them as pgbouncer does, or take them and throw them away.
"""

import asyncio
import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from enum import Enum, auto
from urllib.parse import urlsplit, urlunsplit

SSL_REQUEST = 80877103
KNOWN = {"user", "database", "application_name", "client_encoding"}
"""What a pooler lets a session say."""


class Settings(Enum):
    """What becomes of the settings in a startup packet."""

    PASSED = auto()
    REFUSED = auto()
    SWALLOWED = auto()


class FaultProxy:
    def __init__(self, host: str, port: int) -> None:
        self._upstream = (host, port)
        self._writers: set[asyncio.StreamWriter] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.delay = 0.0
        self.settings = Settings.PASSED
        self.accepted = 0

    def swallow(self) -> None:
        """From now on nothing arrives and nobody is told."""
        self._flowing.clear()

    def flow(self) -> None:
        self._flowing.set()

    def reset(self) -> None:
        """Break every connection: both ends get RST."""
        for writer in self._writers:
            raw = writer.get_extra_info("socket")
            if raw is not None and not writer.is_closing():
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        self._writers.clear()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self._writers.add(writer)
        with suppress(OSError, asyncio.IncompleteReadError):
            startup = await self._startup(reader, writer)
            if startup is not None:
                there, back = await asyncio.open_connection(*self._upstream)
                self._writers.add(back)
                back.write(startup)
                await asyncio.wait(
                    [asyncio.ensure_future(self._pump(reader, back)), asyncio.ensure_future(self._pump(there, writer))],
                    return_when=asyncio.FIRST_COMPLETED,
                )
                back.close()
        writer.close()

    async def _startup(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes | None:
        """Read the startup packet and say what goes on to the server; None when it was refused here."""
        while True:
            size, code = struct.unpack("!ii", await reader.readexactly(8))
            rest = await reader.readexactly(size - 8)
            await self._flowing.wait()
            if code != SSL_REQUEST:
                break
            writer.write(b"N")
        words = rest.rstrip(b"\0").split(b"\0")
        said = {name.decode(): value for name, value in zip(words[::2], words[1::2], strict=True)}
        foreign = said.keys() - KNOWN
        if foreign and self.settings is Settings.REFUSED:
            told = f"SFATAL\0C08P01\0Munsupported startup parameter: {min(foreign)}\0\0".encode()
            writer.write(b"E" + struct.pack("!i", len(told) + 4) + told)
            await writer.drain()
            return None
        if self.settings is Settings.SWALLOWED:
            kept = b"".join(n.encode() + b"\0" + value + b"\0" for n, value in said.items() if n in KNOWN)
            rest = kept + b"\0"
        return struct.pack("!ii", len(rest) + 8, code) + rest

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, RuntimeError):  # the latter is uvloop's word for a transport that was aborted
            while data := await reader.read(65536):
                if not self._flowing.is_set():
                    continue  # gone, as in a black hole; waiting would only delay it
                await asyncio.sleep(self.delay)
                writer.write(data)
                await writer.drain()


@asynccontextmanager
async def between(url: str) -> AsyncGenerator[tuple[FaultProxy, str]]:
    """A proxy in front of the server `url` names, and the address that leads through it."""
    where = urlsplit(url)
    assert where.hostname
    assert where.port
    proxy = FaultProxy(where.hostname, where.port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    through = where._replace(netloc=f"{where.username}:{where.password}@127.0.0.1:{port}")
    try:
        yield proxy, urlunsplit(through)
    finally:
        server.close()
        proxy.reset()
