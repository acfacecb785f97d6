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

from pabal.outside.course import Course
from pabal.outside.guard import Destination

READ = 4096
"""Bytes at a time: enough for most answers, and one of ten thousand crumbs lets others have their turn."""

Origin = tuple[str, str, int]


@dataclass(slots=True, eq=False)
class Line:
    """One connection, and since when nobody uses it."""

    origin: Origin
    stream: AsyncNetworkStream = field(repr=False)
    socket: Any = field(repr=False)
    since: float = 0.0

    @property
    def silent(self) -> bool:
        """Whether nothing came since its last answer; a connection that was closed meanwhile is not silent."""
        number: int = self.socket.fileno()
        if number < 0:
            return False
        poll = select.poll()
        poll.register(number, select.POLLIN)
        return not poll.poll(0)


class Lines:
    """At most `most` at a time; of those nobody uses, `most_idle` are kept for `idle`."""

    def __init__(
        self, network: AsyncNetworkBackend, tls: ssl.SSLContext, *, idle: timedelta, most: int, most_idle: int
    ) -> None:
        self._network = network
        self._tls = tls
        self._idle = idle.total_seconds()
        self._room = asyncio.Semaphore(most)
        self._most_idle = most_idle
        self._kept: dict[Line, None] = {}
        """The oldest first; those of one origin also stand in its own row."""
        self._rows: defaultdict[Origin, deque[Line]] = defaultdict(deque)

    async def close(self) -> None:
        while self._kept:
            await self._take(next(iter(self._kept))).stream.aclose()

    async def exchange(self, where: Destination, request: bytes, course: Course, within: timedelta) -> None:
        """Send once, and read the answer into `course`. A line is used again only after a whole one."""
        async with self._room:
            line = await self._free(where) or await self._open(where, within)
            again = False
            try:
                course.sent = True
                await line.stream.write(request)
                while course.listens:
                    course.feed(await line.stream.read(READ))
                again = course.again
            finally:
                if again:
                    await self._keep(line)
                else:
                    await line.stream.aclose()

    async def _open(self, where: Destination, within: timedelta) -> Line:
        seconds = within.total_seconds()
        stream = await self._network.connect_tcp(where.host, where.port, seconds)
        if where.scheme == "https":
            stream = await stream.start_tls(self._tls, where.host, seconds)
        return Line((where.scheme, where.host, where.port), stream, stream.get_extra_info("socket"))

    async def _free(self, where: Destination) -> Line | None:
        """The line used last, if it is still good; those that are not go."""
        row = self._rows.get((where.scheme, where.host, where.port))
        while row:
            line = self._take(row[-1])
            if line.since + self._idle > monotonic() and line.silent:
                return line
            await line.stream.aclose()
        return None

    async def _keep(self, line: Line) -> None:
        line.since = monotonic()
        self._kept[line] = None
        self._rows[line.origin].append(line)
        oldest = next(iter(self._kept))
        if len(self._kept) > self._most_idle or oldest.since + self._idle <= line.since:
            await self._take(oldest).stream.aclose()  # one goes for each that comes, so they never pile up

    def _take(self, line: Line) -> Line:
        del self._kept[line]
        row = self._rows[line.origin]
        row.pop() if row[-1] is line else row.remove(line)
        if not row:
            del self._rows[line.origin]
        return line
