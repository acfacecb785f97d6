"""A listener that can be paused.

The event loop's server accepts until the process has no file descriptor left, and uvloop then closes the listener for
good. It accepts one connection per iteration, so pausing in time is enough.
"""

import asyncio
import socket
from collections.abc import Callable


class PausableListener:
    """Accepts the connections of one socket. While paused, the kernel queues them."""

    def __init__(self, listener: socket.socket, create_protocol: Callable[[], asyncio.Protocol], backlog: int) -> None:
        self._socket = listener
        self._create_protocol = create_protocol
        self._backlog = backlog
        self._server: asyncio.Server | None = None
        self._resume_task: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def is_accepting(self) -> bool:
        return self._server is not None or self._resume_task is not None

    async def start(self) -> None:
        if not self._is_closed:
            # A server closes its socket, so it gets a copy: the original stays open and keeps the queue.
            self._server = await asyncio.get_running_loop().create_server(
                self._create_protocol, sock=self._socket.dup(), backlog=self._backlog
            )

    def pause(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def resume(self) -> None:
        if not self.is_accepting and not self._is_closed:
            self._resume_task = asyncio.create_task(self.start())
            self._resume_task.add_done_callback(self._finish_resuming)

    async def close(self) -> None:
        self._is_closed = True
        if self._resume_task is not None:
            await self._resume_task
        self.pause()
        self._socket.close()

    def _finish_resuming(self, _task: "asyncio.Task[None]") -> None:
        self._resume_task = None
