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
from time import monotonic
from typing import Any

from httpcore2 import AsyncNetworkBackend, AsyncNetworkStream

from pabal.outside.course import ResponseParser
from pabal.outside.guard import Destination

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
