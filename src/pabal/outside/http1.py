"""Lines: kept connections that carry one exchange of HTTP/1.1 at a time.

What is asked and what is read is only what the hub needs: one POST, and one answer with a body of some size. For each
exchange only the connection it goes by is looked at; a pool that looks at all of them costs more than the exchange.
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
"""Bytes of an answer that are not its body: the head, and what chunks are wrapped in and followed by."""


class ResponseParser:
    """Reads an answer as it comes. `most` is how much of its body is listened to.

    The parser calls `on_…` while it is fed.
    """

    def __init__(self, max_body: int) -> None:
        self.request_sent = False
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.is_complete = False
        self.is_reusable = False
        """Whether the connection is good for another exchange."""
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
        """Read on; no data is the end of the connection."""
        if not data:
            if not self._ends_at_close:
                raise RemoteProtocolError("the connection ended before the answer did")
            self.is_complete = True
            return
        self._bytes_fed += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if not self.is_complete:  # what comes after the end of an answer spoils the connection, and not the answer
                raise RemoteProtocolError(str(error)) from error
            self.is_reusable = False
        if self.status is None and self._bytes_fed > MAX_OVERHEAD_BYTES:
            raise RemoteProtocolError("the answer's head is too long")

    def on_message_begin(self) -> None:
        self.is_reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.status is None:  # what comes after the body is no header
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
        if self.status is None:  # only a word in between: the answer is still to come
            self.headers.clear()
        elif not self.is_complete:
            self.is_complete = True
            self.is_reusable = self._parser.should_keep_alive()


READ_BYTES = 4096
"""Bytes at a time: enough for most answers, and one of ten thousand crumbs lets others have their turn."""

Origin = tuple[str, str, int]


@dataclass(slots=True, eq=False)
class PooledConnection:
    """One connection, and since when nobody uses it."""

    origin: Origin
    stream: AsyncNetworkStream = field(repr=False)
    socket: Any = field(repr=False)
    idle_since: float = 0.0

    @property
    def is_silent(self) -> bool:
        """Whether nothing came since its last answer; a connection that was closed meanwhile is not silent."""
        number: int = self.socket.fileno()
        if number < 0:
            return False
        poll = select.poll()
        poll.register(number, select.POLLIN)
        return not poll.poll(0)


class ConnectionPool:
    """At most `most` at a time; of those nobody uses, `most_idle` are kept for `idle`."""

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
        """The oldest first; those of one origin also stand in its own row."""
        self._idle_by_origin: defaultdict[Origin, deque[PooledConnection]] = defaultdict(deque)

    async def close(self) -> None:
        while self._idle_connections:
            await self._remove_idle(next(iter(self._idle_connections))).stream.aclose()

    async def exchange(
        self, destination: Destination, request: bytes, parser: ResponseParser, time_limit: timedelta
    ) -> None:
        """Send once, and read the answer into `course`. A line is used again only after a whole one."""
        async with self._slots:
            line = await self._reuse_idle(destination) or await self._connect(destination, time_limit)
            again = False
            try:
                parser.request_sent = True
                await line.stream.write(request)
                while parser.needs_data:
                    parser.feed(await line.stream.read(READ_BYTES))
                again = parser.is_reusable
            finally:
                if again:
                    await self._keep_idle(line)
                else:
                    await line.stream.aclose()

    async def _connect(self, destination: Destination, time_limit: timedelta) -> PooledConnection:
        seconds = time_limit.total_seconds()
        stream = await self._network.connect_tcp(destination.host, destination.port, seconds)
        if destination.scheme == "https":
            stream = await stream.start_tls(self._tls, destination.host, seconds)
        return PooledConnection(
            (destination.scheme, destination.host, destination.port), stream, stream.get_extra_info("socket")
        )

    async def _reuse_idle(self, destination: Destination) -> PooledConnection | None:
        """The line used last, if it is still good; those that are not go."""
        row = self._idle_by_origin.get((destination.scheme, destination.host, destination.port))
        while row:
            line = self._remove_idle(row[-1])
            if line.idle_since + self._idle_timeout > monotonic() and line.is_silent:
                return line
            await line.stream.aclose()
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
            await self._remove_idle(oldest).stream.aclose()  # one goes for each that comes, so they never pile up

    def _remove_idle(self, connection: PooledConnection) -> PooledConnection:
        del self._idle_connections[connection]
        row = self._idle_by_origin[connection.origin]
        row.pop() if row[-1] is connection else row.remove(connection)
        if not row:
            del self._idle_by_origin[connection.origin]
        return connection
