"""The web server: uvicorn with connection limits, without its signal handlers and polling delays on shutdown."""

import asyncio
import resource
import socket
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import uvicorn

from pabal.core.log import get_logger
from pabal.db.doorbell import wait_with_timeout
from pabal.web.accept import PausableListener
from pabal.web.connections import ConnectionLimits, ConnectionTable
from pabal.web.protocol import LimitedHttpProtocol
from pabal.web.request import IpNetwork

log = get_logger()

TICK_INTERVAL = timedelta(seconds=1)
"""How often the Date header is refreshed and timeouts are checked."""
CROWDED_INTERVAL = timedelta(milliseconds=250)
"""How often timeouts are checked while connections wait for others to end."""
SHUTDOWN_POLL_SECONDS = 0.005
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

    def stop(self) -> None:
        """Stop accepting requests and shut down."""
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
        for listener in self._listeners:
            await listener.close()
        for connection in [*self.server_state.connections]:
            connection.shutdown()
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while self.server_state.connections or self.server_state.tasks:  # noqa: ASYNC110 uvicorn has no event for this
                    await asyncio.sleep(SHUTDOWN_POLL_SECONDS)
        except TimeoutError:
            log.warning("requests cancelled at shutdown", count=len(self.server_state.tasks))
            for task in self.server_state.tasks:
                task.cancel()

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


def open_file_limit() -> int:
    """How many files this process may open."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if limit == resource.RLIM_INFINITY else limit
