"""HTTP/1.1: a connection pool and a response parser.

Only what the hub needs: one POST, and one response with a bounded body. An exchange checks only the connection that it
uses; a pool that checks all of them costs more than the exchange.
"""

import asyncio
import select
import ssl
from collections import defaultdict, deque
from dataclasses import dataclass, field
from datetime import timedelta
from http import HTTPStatus
from time import monotonic
from typing import Any

import httptools
from httpcore2 import AsyncNetworkBackend, AsyncNetworkStream, RemoteProtocolError

from pabal.outside.ssrf import Destination

MAX_OVERHEAD_BYTES = 64 * 1024
"""Limit for the bytes of a response besides its body: headers, chunk sizes and trailers."""


class ResponseParser:
    """Parses a response incrementally, up to `max_body` bytes of its body.

    httptools calls the `on_…` methods during `feed`.
    """

    def __init__(self, max_body: int) -> None:
        self.has_connection_slot = False
        self.request_sent = False
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.is_complete = False
        self.is_reusable = False
        """Whether the connection can be used again."""
        self._max_body = max_body
        self._bytes_fed = 0
        self._ends_at_close = False
        self._parser = httptools.HttpResponseParser(self)

    @property
    def needs_data(self) -> bool:
        return (
            not self.is_complete
            and len(self.body) <= self._max_body
            and self._bytes_fed - len(self.body) <= MAX_OVERHEAD_BYTES
        )

    def feed(self, data: bytes) -> None:
        """Parse more data; empty data is the end of the connection."""
        if not data:
            if not self._ends_at_close:
                raise RemoteProtocolError("the connection closed before the end of the response")
            self.is_complete = True
            return
        self._bytes_fed += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if not self.is_complete:  # data after the response makes only the connection unusable
                raise RemoteProtocolError(str(error)) from error
            self.is_reusable = False
        if self.status is None and self._bytes_fed > MAX_OVERHEAD_BYTES:
            raise RemoteProtocolError("the response headers are too long")

    def on_message_begin(self) -> None:
        self.is_reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.status is None:  # ignore trailers
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self.is_complete:
            return
        status = self._parser.get_status_code()
        if status >= HTTPStatus.OK:
            self.status = status
            self._ends_at_close = not self.headers.keys() & {"content-length", "transfer-encoding"}

    def on_body(self, data: bytes) -> None:
        if not self.is_complete:
            self.body += data

    def on_message_complete(self) -> None:
        if self.status is None:  # an informational response (1xx)
            self.headers.clear()
        elif not self.is_complete:
            self.is_complete = True
            self.is_reusable = self._parser.should_keep_alive()


READ_BYTES = 4096
"""Enough for most responses in one read; a long response yields to other tasks between reads."""

Origin = tuple[str, str, int]


@dataclass(slots=True, eq=False)
class PooledConnection:
    """A connection, and the time since which it is idle."""

    origin: Origin
    stream: AsyncNetworkStream = field(repr=False)
    socket: Any = field(repr=False)
    idle_since: float = 0.0

    @property
    def is_silent(self) -> bool:
        """Whether nothing arrived since the last response. A connection that the server closed is not silent."""
        file_descriptor: int = self.socket.fileno()
        if file_descriptor < 0:
            return False
        poll = select.poll()
        poll.register(file_descriptor, select.POLLIN)
        return not poll.poll(0)


class ConnectionPool:
    """Opens at most `max_connections`; keeps at most `max_idle` idle ones, each for `idle_timeout`."""

    def __init__(
        self,
        network: AsyncNetworkBackend,
        tls: ssl.SSLContext,
        *,
        idle_timeout: timedelta,
        max_connections: int,
        max_idle: int,
    ) -> None:
        self._network = network
        self._tls = tls
        self._idle_timeout = idle_timeout.total_seconds()
        self._slots = asyncio.Semaphore(max_connections)
        self._max_idle = max_idle
        self._idle_connections: dict[PooledConnection, None] = {}
        """The oldest first. `_idle_by_origin` has the same connections by origin."""
        self._idle_by_origin: defaultdict[Origin, deque[PooledConnection]] = defaultdict(deque)

    async def close(self) -> None:
        while self._idle_connections:
            await self._remove_idle(next(iter(self._idle_connections))).stream.aclose()

    async def exchange(
        self, destination: Destination, request: bytes, parser: ResponseParser, time_limit: timedelta
    ) -> None:
        """Send once, and read the response into `parser`. A connection is reused only after a complete response."""
        async with self._slots:
            parser.has_connection_slot = True
            connection = await self._reuse_idle(destination) or await self._connect(destination, time_limit)
            is_reusable = False
            try:
                parser.request_sent = True
                await connection.stream.write(request)
                while parser.needs_data:
                    parser.feed(await connection.stream.read(READ_BYTES))
                is_reusable = parser.is_reusable
            finally:
                if is_reusable:
                    await self._keep_idle(connection)
                else:
                    await connection.stream.aclose()

    async def _connect(self, destination: Destination, time_limit: timedelta) -> PooledConnection:
        seconds = time_limit.total_seconds()
        stream = await self._network.connect_tcp(destination.host, destination.port, seconds)
        if destination.scheme == "https":
            stream = await stream.start_tls(self._tls, destination.host, seconds)
        return PooledConnection(
            (destination.scheme, destination.host, destination.port), stream, stream.get_extra_info("socket")
        )

    async def _reuse_idle(self, destination: Destination) -> PooledConnection | None:
        """Return the most recently used idle connection that is still usable; close the others on the way."""
        idle = self._idle_by_origin.get((destination.scheme, destination.host, destination.port))
        while idle:
            connection = self._remove_idle(idle[-1])
            if connection.idle_since + self._idle_timeout > monotonic() and connection.is_silent:
                return connection
            await connection.stream.aclose()
        return None

    async def _keep_idle(self, connection: PooledConnection) -> None:
        connection.idle_since = monotonic()
        self._idle_connections[connection] = None
        self._idle_by_origin[connection.origin].append(connection)
        oldest = next(iter(self._idle_connections))
        if (
            len(self._idle_connections) > self._max_idle
            or oldest.idle_since + self._idle_timeout <= connection.idle_since
        ):
            await self._remove_idle(oldest).stream.aclose()  # one per kept connection is enough

    def _remove_idle(self, connection: PooledConnection) -> PooledConnection:
        del self._idle_connections[connection]
        idle = self._idle_by_origin[connection.origin]
        idle.pop() if idle[-1] is connection else idle.remove(connection)
        if not idle:
            del self._idle_by_origin[connection.origin]
        return connection
