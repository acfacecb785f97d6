"""The web server: uvicorn, which leaves the signals to whoever runs it and stops when it is told to, without pauses."""

import asyncio
import socket
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta

import uvicorn

from pabal.core.log import get_logger
from pabal.db.doorbell import wait_with_timeout

log = get_logger()

TICK_INTERVAL = timedelta(seconds=1)
"""How often the date in the answers is set: uvicorn looks ten times as often, because it is told to stop by a flag."""
SHUTDOWN_POLL_SECONDS = 0.005


class WebServer(uvicorn.Server):
    """Serves from `serve` until `stop`."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._stop_requested = asyncio.Event()

    def stop(self) -> None:
        """Take no more requests, end those under way, go."""
        self.should_exit = True
        self._stop_requested.set()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            await wait_with_timeout(self._stop_requested, TICK_INTERVAL)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the doors. Whoever is still being answered has the time the settings give."""
        for door in (*self.servers, *(sockets or ())):
            door.close()
        for connection in [*self.server_state.connections]:
            connection.shutdown()
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while self.server_state.connections or self.server_state.tasks:  # noqa: ASYNC110 nobody says when
                    await asyncio.sleep(SHUTDOWN_POLL_SECONDS)
                for server in self.servers:
                    await server.wait_closed()
        except TimeoutError:
            log.warning("answers broken off", how_many=len(self.server_state.tasks))
            for task in self.server_state.tasks:
                task.cancel()
