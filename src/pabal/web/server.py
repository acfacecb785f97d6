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
from pabal.web.accept import ConnectionAcceptor
from pabal.web.connections import ConnectionLimits, ConnectionTable
from pabal.web.protocol import LimitedHttpProtocol
from pabal.web.request import IpNetwork

log = get_logger()

TICK_INTERVAL = timedelta(seconds=1)
"""How often the Date header is refreshed and timeouts are checked."""
SHUTDOWN_POLL_SECONDS = 0.005


class WebServer(uvicorn.Server):
    """Serves until `stop` is called. Without `limits`, they follow from the limit of open files."""

    def __init__(
        self, config: uvicorn.Config, limits: ConnectionLimits | None = None, trusted: Sequence[IpNetwork] = ()
    ) -> None:
        super().__init__(config)
        self.table = ConnectionTable(limits or ConnectionLimits.of_open_files(open_file_limit()), trusted)
        self.table.on_slot_free = self._serve_waiting
        self._acceptors: list[ConnectionAcceptor] = []
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
        self.servers = []
        for listener in sockets or ():
            acceptor = ConnectionAcceptor(listener, self.table, self._create_protocol)
            acceptor.start()
            self._acceptors.append(acceptor)
        self.started = True

    @property
    def waiting_count(self) -> int:
        """How many accepted connections wait for a slot."""
        return sum(acceptor.waiting_count for acceptor in self._acceptors)

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            self.sweep(asyncio.get_running_loop().time())
            await wait_with_timeout(self._stop_requested, TICK_INTERVAL)

    def sweep(self, now: float) -> None:
        """Close connections whose clients are too slow, and make room for those that wait."""
        self.table.close_expired(now)
        for acceptor in self._acceptors:
            acceptor.sweep(now)
        self.table.log_refusals(now)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002 the acceptors close them
        """Stop listening, then wait for running requests until the graceful shutdown timeout."""
        for acceptor in self._acceptors:
            await acceptor.close()
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

    def _create_protocol(self, address: str) -> LimitedHttpProtocol:
        return LimitedHttpProtocol(
            config=self.config, server_state=self.server_state, app_state={}, table=self.table, address=address
        )

    def _serve_waiting(self) -> None:
        for acceptor in self._acceptors:
            acceptor.serve_waiting()


def open_file_limit() -> int:
    """How many files this process may open."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if limit == resource.RLIM_INFINITY else limit
