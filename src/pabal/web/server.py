"""The web server: uvicorn without its signal handlers and without its polling delays on shutdown."""

import asyncio
import socket
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pabal.core.log import get_logger
from pabal.db.doorbell import wait_with_timeout

log = get_logger()

TICK_INTERVAL = timedelta(seconds=1)
"""How often the Date header is refreshed. Uvicorn ticks ten times as often because it polls a stop flag."""
SHUTDOWN_POLL_SECONDS = 0.005


class WebServer(uvicorn.Server):
    """Serves until `stop` is called."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._stop_requested = asyncio.Event()

    def stop(self) -> None:
        """Stop accepting requests and shut down."""
        self.should_exit = True
        self._stop_requested.set()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            await wait_with_timeout(self._stop_requested, TICK_INTERVAL)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, then wait for running requests until the graceful shutdown timeout."""
        for listener in (*self.servers, *(sockets or ())):
            listener.close()
        for connection in [*self.server_state.connections]:
            connection.shutdown()
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while self.server_state.connections or self.server_state.tasks:  # noqa: ASYNC110 uvicorn has no event for this
                    await asyncio.sleep(SHUTDOWN_POLL_SECONDS)
                for server in self.servers:
                    await server.wait_closed()
        except TimeoutError:
            log.warning("requests cancelled at shutdown", count=len(self.server_state.tasks))
            for task in self.server_state.tasks:
                task.cancel()


MAX_HEAD_BYTES = 65_536
HEAD_TIMEOUT = 10.0  # seconds
HEAD_END = b"\r\n\r\n"


class LimitedHttpProtocol(HttpToolsProtocol):
    """One HTTP connection, with a limit on the size of the request head and the time to send it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = True
        self._head_bytes = 0
        self._tail = b""
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self._start_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_head_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            end = (self._tail + data).find(HEAD_END)  # data after the head is the body
            self._head_bytes += len(data) if end < 0 else max(end - len(self._tail), 0)
            self._tail = (self._tail + data)[-len(HEAD_END) + 1 :]
            if self._head_bytes > MAX_HEAD_BYTES:
                self.send_400_response(f"The request head is larger than {MAX_HEAD_BYTES} bytes.")
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if not self._in_head:  # the next request on a kept-alive connection
            self._start_head()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._cancel_head_timer()
        super().on_headers_complete()

    def _start_head(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        self._tail = b""
        self._head_timer = asyncio.get_running_loop().call_later(HEAD_TIMEOUT, self._close_slow_connection)

    def _cancel_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _close_slow_connection(self) -> None:
        self.transport.close()
