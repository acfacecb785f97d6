"""Accept connections within the limits.

The event loop's own server accepts until the process has no file descriptor left, and uvloop then closes the listener.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pabal.core.log import get_logger
from pabal.web.connections import EVICTABLE_AFTER, CloseReason, ConnectionTable

if TYPE_CHECKING:
    from pabal.web.protocol import LimitedHttpProtocol

log = get_logger()

MAX_ACCEPTS = 128
"""Connections accepted at once, so that a burst does not delay open connections."""
SLOT_TIMEOUT = 10.0
"""Seconds that an accepted connection waits for a slot."""
MAX_EVICTIONS = 64
"""Connections closed per sweep when the process is full."""


@dataclass(frozen=True, slots=True)
class WaitingSocket:
    """An accepted connection that nothing is read from until it has a slot."""

    socket: socket.socket
    since: float


class ConnectionAcceptor:
    """Accepts the connections of one listener.

    A burst of clients from one address is served in turn: a connection without a slot waits, and slots become free as
    requests are authenticated, connections end, and idle ones are closed.
    """

    def __init__(
        self, listener: socket.socket, table: ConnectionTable, create_protocol: Callable[[str], "LimitedHttpProtocol"]
    ) -> None:
        self._listener = listener
        self._table = table
        self._create_protocol = create_protocol
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[str, deque[WaitingSocket]] = {}
        self._waiting_count = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_accepting = False
        self._is_closed = False

    @property
    def waiting_count(self) -> int:
        return self._waiting_count

    def start(self) -> None:
        self._listener.setblocking(False)
        self._resume()

    async def close(self) -> None:
        """Stop accepting, and close the connections that wait for a slot."""
        self._pause()
        self._is_closed = True
        self._listener.close()
        for queue in self._waiting.values():
            for waiting in queue:
                waiting.socket.close()
        self._waiting.clear()
        self._waiting_count = 0
        await asyncio.gather(*self._tasks)

    def serve_waiting(self) -> None:
        """Serve connections that got a slot, one address after the other, and accept again if there is room."""
        addresses = deque(self._waiting)
        while addresses:
            address = addresses.popleft()
            if self._table.has_slot(address):
                queue = self._waiting.pop(address)
                self._serve(queue.popleft().socket, address)
                self._waiting_count -= 1
                if queue:
                    self._waiting[address] = queue  # behind the other addresses
                    addresses.append(address)
        if not self._is_closed and not self._is_accepting and not self._is_full:
            self._resume()

    def sweep(self, now: float) -> None:
        """Make room for the connections that wait, by closing idle ones. Close those that wait too long."""
        for address, queue in [*self._waiting.items()]:
            if self._table.is_address_full(address):
                self._table.evict_of_address(address, len(queue), now)
        if self._waiting and self._table.anonymous_count >= self._table.limits.anonymous:
            self._table.evict_anonymous(self._waiting_count, now)
        if self._is_full:
            self._table.evict_any(MAX_EVICTIONS, now)
        self._close_waiting(now)
        self.serve_waiting()

    @property
    def _is_full(self) -> bool:
        return len(self._table) + self._waiting_count >= self._table.limits.total

    def _accept(self) -> None:
        for _ in range(MAX_ACCEPTS):
            if self._is_full:
                self._pause()  # the kernel queues further connections
                return
            try:
                accepted, peer = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no file descriptor left: the sweep tries again
                log.error("accept failed", error=str(error))
                self._pause()
                return
            address = self._table.address_key(str(peer[0]))
            if address not in self._waiting and self._table.has_slot(address):
                self._serve(accepted, address)
            else:
                self._waiting.setdefault(address, deque()).append(WaitingSocket(accepted, self._loop.time()))
                self._waiting_count += 1

    def _serve(self, accepted: socket.socket, address: str) -> None:
        protocol = self._create_protocol(address)
        self._table.add(protocol)
        task = self._loop.create_task(self._connect(accepted, protocol))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, accepted: socket.socket, protocol: "LimitedHttpProtocol") -> None:
        try:
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(lambda: protocol, accepted)
        except OSError:  # the client is gone
            accepted.close()
            self._table.remove(protocol)

    def _close_waiting(self, now: float) -> None:
        """Close connections that waited too long; if the process is full, earlier, where most of them wait."""
        crowded = max(self._waiting, key=lambda address: len(self._waiting[address]), default="")
        for address, queue in [*self._waiting.items()]:
            reason = CloseReason.ADDRESS_LIMIT if self._table.is_address_full(address) else CloseReason.CONNECTION_LIMIT
            patience = EVICTABLE_AFTER if self._is_full and address == crowded else SLOT_TIMEOUT
            while queue and now - queue[0].since >= patience:
                queue.popleft().socket.close()
                self._waiting_count -= 1
                self._table.closed[reason] += 1
            if not queue:
                del self._waiting[address]

    def _resume(self) -> None:
        self._is_accepting = True
        self._loop.add_reader(self._listener.fileno(), self._accept)

    def _pause(self) -> None:
        if self._is_accepting:
            self._is_accepting = False
            with suppress(OSError, ValueError):
                self._loop.remove_reader(self._listener.fileno())
