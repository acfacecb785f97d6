"""The web server: uvicorn with connection limits, without its signal handlers and polling delays on shutdown."""

import asyncio
import resource
import socket
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any

import uvicorn

from pabal.core.log import get_logger
from pabal.db.waiting import wait_with_timeout
from pabal.web.request import IpNetwork
from pabal.web.server.accept import PausableListener
from pabal.web.server.connections import ConnectionLimits, ConnectionTable
from pabal.web.server.protocol import LimitedHttpProtocol

log = get_logger()

TICK_INTERVAL = timedelta(seconds=1)
"""How often the Date header is refreshed and timeouts are checked."""
CROWDED_INTERVAL = timedelta(milliseconds=250)
"""How often timeouts are checked while connections wait for others to end."""
SHUTDOWN_POLL_SECONDS = 0.005
DRAIN_LIMIT = timedelta(seconds=30)
"""How long running requests may take in a process that another one has replaced."""
IDLE_DRAIN = timedelta(seconds=5)
"""How long such a process waits for the next request on an idle connection, to answer it with `Connection: close`. A
connection that is closed without this answer may carry a request already."""
RESUME_BELOW = 15 / 16
"""The share of all connections below which a paused listener resumes at once."""


class WebServer(uvicorn.Server):
    """Serves until `stop` is called. Without `limits`, they follow from the limit of open files."""

    def __init__(
        self, config: uvicorn.Config, limits: ConnectionLimits | None = None, trusted: Sequence[IpNetwork] = ()
    ) -> None:
        super().__init__(config)
        self.table = ConnectionTable(limits or ConnectionLimits.of_open_files(open_file_limit()), trusted)
        self.table.on_removed = self._resume_with_room
        self._listeners: list[PausableListener] = []
        self._stop_requested = asyncio.Event()
        self._is_draining = False
        self._has_started = asyncio.Event()

    async def wait_until_started(self) -> None:
        """Wait until connections are accepted."""
        await self._has_started.wait()

    async def stop_accepting(self) -> None:
        """Accept no more connections. Those that wait in the queue of a shared socket are left to other processes."""
        for listener in self._listeners:
            await listener.close()

    def announce_close(self) -> None:
        """Ask clients to use another connection: every response from now on carries `Connection: close`."""
        self.table.is_closing = True
        connections: list[Any] = [*self.server_state.connections]
        for connection in connections:
            connection.announce_close()

    def stop(self, *, drain: bool = False) -> None:
        """Stop accepting connections and shut down.

        With `drain`, another process accepts requests already: idle connections are answered once more, and running
        requests have more time.
        """
        self._is_draining = drain
        self.announce_close()
        self.should_exit = True
        self._stop_requested.set()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections of the listeners."""
        for listening_socket in sockets or ():
            listener = PausableListener(listening_socket, self._create_protocol, self.config.backlog)
            await listener.start()
            self._listeners.append(listener)
        self.started = True
        self._has_started.set()

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            self.sweep(asyncio.get_running_loop().time())
            is_crowded = self.table.waiting_count or self.table.is_full
            await wait_with_timeout(self._stop_requested, CROWDED_INTERVAL if is_crowded else TICK_INTERVAL)

    def sweep(self, now: float) -> None:
        """Close connections whose clients are too slow, and make room for those that wait."""
        self.table.sweep(now)
        if not self.table.is_full:
            self._resume_accepting()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002 the listeners close them
        """Stop listening, then wait for running requests until the graceful shutdown timeout."""
        await self.stop_accepting()
        limit = self.config.timeout_graceful_shutdown
        if self._is_draining:
            limit = DRAIN_LIMIT.total_seconds()
            asyncio.get_running_loop().call_later(IDLE_DRAIN.total_seconds(), self._close_idle)
        else:
            self._close_idle()
        try:
            async with asyncio.timeout(limit):
                while self.server_state.connections or self.server_state.tasks:  # noqa: ASYNC110 uvicorn has no event for this
                    await asyncio.sleep(SHUTDOWN_POLL_SECONDS)
        except TimeoutError:
            log.warning("requests cancelled at shutdown", count=len(self.server_state.tasks))
            for task in self.server_state.tasks:
                task.cancel()

    def _close_idle(self) -> None:
        for connection in [*self.server_state.connections]:
            connection.shutdown()

    def _create_protocol(self) -> LimitedHttpProtocol:
        if self.table.is_full:
            for listener in self._listeners:
                asyncio.get_running_loop().call_soon(listener.pause)  # after this connection is set up
        return LimitedHttpProtocol(config=self.config, server_state=self.server_state, app_state={}, table=self.table)

    def _resume_with_room(self) -> None:
        """Resume if there is room for more than a few connections; otherwise the next sweep does."""
        if len(self.table) < self.table.limits.total * RESUME_BELOW:
            self._resume_accepting()

    def _resume_accepting(self) -> None:
        for listener in self._listeners:
            listener.resume()


@asynccontextmanager
async def serving(server: WebServer, listener: socket.socket) -> AsyncGenerator[None]:
    """Serve on the socket for the duration of the block, then shut down and close the socket."""
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield
    finally:
        server.stop()
        await task


def open_file_limit() -> int:
    """How many files this process may open."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if limit == resource.RLIM_INFINITY else limit
