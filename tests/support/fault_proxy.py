"""A TCP proxy in front of PostgreSQL that simulates network faults.

It delays, drops or holds bytes, swallows answers, or resets all connections. It can also treat the settings
of a session like a pooler: refuse them as PgBouncer does, or accept and ignore them.
"""

import asyncio
import random
import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from enum import Enum, auto
from urllib.parse import urlsplit, urlunsplit

SSL_REQUEST, CANCEL_REQUEST = 80877103, 80877102
POOLER_PARAMETERS = {"user", "database", "application_name", "client_encoding"}
"""The startup parameters that a pooler accepts."""
RETRANSMISSION = 0.2
"""Seconds until a lost segment is sent again: the least that Linux waits."""


class StartupSettings(Enum):
    """How the settings in a startup packet are treated."""

    PASSED = auto()
    REFUSED = auto()
    IGNORED = auto()


class ProxyMode(Enum):
    """What happens to the bytes of every connection."""

    PASS = auto()
    HALT = auto()
    """Both directions wait until the proxy passes bytes again, as with a network that retransmits."""
    DROP = auto()
    """Both directions are lost for good. New connections wait."""
    SWALLOW = auto()
    """The server gets and executes everything; its answers are lost."""


class FaultProxy:
    def __init__(self, host: str, port: int) -> None:
        self._upstream = (host, port)
        self._writers: set[asyncio.StreamWriter] = set()
        self._mode = ProxyMode.PASS
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._admitting = asyncio.Event()
        self._admitting.set()
        self._swallowed_after: bytes | None = None
        self.swallowed = asyncio.Event()
        """Set when the answer to a pattern was swallowed."""
        self.delay = 0.0
        """Seconds that all bytes wait, in each direction."""
        self.loss = 0.0
        """The share of segments that are lost and sent again after `RETRANSMISSION`; the bytes behind them wait."""
        self.settings = StartupSettings.PASSED
        self.added_settings: dict[str, str] = {}
        """Settings of every new session. `default_transaction_read_only` makes the host look like a standby."""
        self.accepted = 0
        self._first_kept = 0
        """The number of the first connection whose bytes are not lost for good."""

    def drop_bytes(self) -> None:
        """Drop all bytes silently from now on."""
        self._set_mode(ProxyMode.DROP)

    def halt(self) -> None:
        """Hold all bytes, in both directions, until `pass_bytes`."""
        self._set_mode(ProxyMode.HALT)

    def swallow_answers(self) -> None:
        """Drop all bytes that the server sends from now on."""
        self._set_mode(ProxyMode.SWALLOW)

    def swallow_answer_to(self, pattern: bytes) -> None:
        """Once a client sends `pattern`, for example b"COMMIT", swallow every further answer on that connection.

        Only the first connection that sends it is affected.
        """
        self._swallowed_after = pattern
        self.swallowed.clear()

    def hold_new_connections(self) -> None:
        """Accept connections and do not answer them, as a server that is too busy to start a process for them."""
        self._admitting.clear()

    def admit_new_connections(self) -> None:
        self._admitting.set()

    def lose_open_connections(self) -> None:
        """Drop all bytes of the connections that are open now, and acknowledge them; new connections work."""
        self._first_kept = self.accepted + 1

    def pass_bytes(self) -> None:
        self._set_mode(ProxyMode.PASS)

    def _set_mode(self, mode: ProxyMode) -> None:
        self._mode = mode
        if mode in (ProxyMode.PASS, ProxyMode.SWALLOW):
            self._flowing.set()
        else:
            self._flowing.clear()

    def reset(self) -> None:
        """Reset every connection: both ends get RST."""
        for writer in self._writers:
            raw = writer.get_extra_info("socket")
            if raw is not None and not writer.is_closing():
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        self._writers.clear()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        number = self.accepted
        self._writers.add(writer)
        await self._admitting.wait()
        with suppress(OSError, asyncio.IncompleteReadError):
            startup = await self._startup(reader, writer)
            if startup is not None:
                upstream_reader, upstream_writer = await asyncio.open_connection(*self._upstream)
                self._writers.add(upstream_writer)
                upstream_writer.write(startup)
                is_deaf = asyncio.Event()
                await asyncio.wait(
                    [
                        asyncio.ensure_future(self._pump_requests(reader, upstream_writer, is_deaf, number)),
                        asyncio.ensure_future(self._pump_answers(upstream_reader, writer, is_deaf, number)),
                    ],
                    return_when=asyncio.FIRST_COMPLETED,
                )
                upstream_writer.close()
        writer.close()

    async def _startup(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes | None:
        """Read the startup packet; returns what to send to the server, or None if it was refused."""
        while True:
            size, code = struct.unpack("!ii", await reader.readexactly(8))
            rest = await reader.readexactly(size - 8)
            await self._flowing.wait()
            if code != SSL_REQUEST:
                break
            if writer.is_closing():  # reset while it waited: uvloop refuses to write
                raise ConnectionResetError
            writer.write(b"N")
        if code == CANCEL_REQUEST:
            return struct.pack("!ii", size, code) + rest
        words = rest.rstrip(b"\0").split(b"\0")
        parameters = {name.decode(): value for name, value in zip(words[::2], words[1::2], strict=True)}
        unsupported = parameters.keys() - POOLER_PARAMETERS
        if unsupported and self.settings is StartupSettings.REFUSED:
            error = f"SFATAL\0C08P01\0Munsupported startup parameter: {min(unsupported)}\0\0".encode()
            writer.write(b"E" + struct.pack("!i", len(error) + 4) + error)
            await writer.drain()
            return None
        if self.settings is StartupSettings.IGNORED:
            accepted = b"".join(
                n.encode() + b"\0" + value + b"\0" for n, value in parameters.items() if n in POOLER_PARAMETERS
            )
            rest = accepted + b"\0"
        if self.added_settings:
            rest = rest[:-1] + b"".join(
                name.encode() + b"\0" + text.encode() + b"\0" for name, text in self.added_settings.items()
            )
            rest += b"\0"
        return struct.pack("!ii", len(rest) + 8, code) + rest

    async def _pump_requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_deaf: asyncio.Event, number: int
    ) -> None:
        with suppress(OSError, RuntimeError):  # uvloop raises RuntimeError for an aborted transport
            while data := await reader.read(65536):
                if await self._is_lost(number):
                    continue
                if self._swallowed_after is not None and self._swallowed_after in data:
                    self._swallowed_after = None
                    is_deaf.set()
                    self.swallowed.set()
                writer.write(data)
                await writer.drain()

    async def _pump_answers(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_deaf: asyncio.Event, number: int
    ) -> None:
        with suppress(OSError, RuntimeError):
            while data := await reader.read(65536):
                if is_deaf.is_set() or await self._is_lost(number) or self._mode is ProxyMode.SWALLOW:
                    continue
                writer.write(data)
                await writer.drain()

    async def _is_lost(self, number: int) -> bool:
        """Delay or hold bytes of a connection as the mode says; returns whether they are dropped."""
        if self._mode is ProxyMode.HALT:
            await self._flowing.wait()
        if self._mode is ProxyMode.DROP or number < self._first_kept:
            return True
        if delay := self.delay + (RETRANSMISSION if self.loss and random.random() < self.loss else 0.0):
            await asyncio.sleep(delay)
        return False


@asynccontextmanager
async def run_fault_proxy(url: str) -> AsyncGenerator[tuple[FaultProxy, str]]:
    """Start a proxy in front of the server of `url`; yields it and the URL that leads through it."""
    parts = urlsplit(url)
    assert parts.hostname
    assert parts.port
    proxy = FaultProxy(parts.hostname, parts.port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    through = parts._replace(netloc=f"{parts.username}:{parts.password}@127.0.0.1:{port}")
    try:
        yield proxy, urlunsplit(through)
    finally:
        server.close()
        proxy.admit_new_connections()
        proxy.reset()
