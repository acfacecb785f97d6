"""The TCP connection of a request: notice a client that vanished, and reset one that must not reconnect at once."""

import asyncio
import fcntl
import os
import socket
import struct
import termios
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic
from typing import Any

from starlette.requests import Request

UNACKNOWLEDGED_TIMEOUT = timedelta(seconds=20)
"""How long sent bytes, a ping for example, or keepalive probes may stay unacknowledged before the connection ends."""
KEEPALIVE_OPTIONS = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}  # seconds, seconds, probes
RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: on, for no time


def find_transport(request: Request) -> asyncio.Transport | None:
    """The transport of a request; None without a server, as in tests of the application alone.

    ASGI does not pass it on. Uvicorn's `receive` is a method of the object that has it.
    """
    return getattr(getattr(request.receive, "__self__", None), "transport", None)


def detect_dead_peer(transport: asyncio.Transport) -> None:
    """Let the kernel end the connection if the client no longer acknowledges. A proxy acknowledges for its clients."""
    peer: Any = transport.get_extra_info("socket")
    timeout_ms = UNACKNOWLEDGED_TIMEOUT // timedelta(milliseconds=1)
    options = KEEPALIVE_OPTIONS | {"TCP_USER_TIMEOUT": timeout_ms}
    try:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in options.items():
            if hasattr(socket, name):  # not every option exists on every system
                peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    except (OSError, ValueError):
        return  # a Unix socket, or the client has disconnected already, for which uvloop raises ValueError


def reset_connection(transport: asyncio.Transport) -> None:
    """Drop unsent bytes and send a reset instead of a clean end."""
    peer: Any = transport.get_extra_info("socket")
    if not transport.is_closing():
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    transport.abort()


ACKNOWLEDGE_TIMEOUT = 3.0
"""Seconds within which a client acknowledges a response, unless its connection is broken."""
FIRST_ACKNOWLEDGE_CHECK, MAX_ACKNOWLEDGE_CHECK = 0.001, 0.1
"""Seconds between checks. The kernel does not tell when bytes are acknowledged."""


@dataclass(slots=True)
class ClientConnection:
    """The connection of one request, to learn whether its response arrived.

    A duplicate of the socket's descriptor stays valid when the server closes the connection after the response.
    """

    transport: asyncio.Transport | None
    descriptor: int | None
    was_open: bool
    """Whether the client was connected before the response."""

    async def wait_until_acknowledged(self, *, is_sent: bool, timeout: float | None = None) -> bool:
        """Whether the client has acknowledged the response. Without a server, all that is sent arrives."""
        if self.transport is None or self.descriptor is None:
            return is_sent
        delay, give_up_at = FIRST_ACKNOWLEDGE_CHECK, monotonic() + (timeout or ACKNOWLEDGE_TIMEOUT)
        try:
            while is_sent and not self._is_reset():
                if not self._has_unacknowledged():
                    return not self._is_reset()
                if monotonic() >= give_up_at:
                    return False
                await asyncio.sleep(delay)
                delay = min(2 * delay, MAX_ACKNOWLEDGE_CHECK)
            return False
        finally:
            self.close()

    def close(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None

    def _has_unacknowledged(self) -> bool:
        assert self.transport is not None
        assert self.descriptor is not None
        if self.transport.get_write_buffer_size():
            return True
        unacknowledged = fcntl.ioctl(self.descriptor, termios.TIOCOUTQ, bytes(4))
        return struct.unpack("i", unacknowledged)[0] > 0

    def _is_reset(self) -> bool:
        """Whether the client has reset the connection: unsent bytes are discarded then, not acknowledged."""
        assert self.descriptor is not None
        with socket.socket(fileno=os.dup(self.descriptor)) as peer:
            return tcp_state(peer) == TCP_CLOSED


TCP_CLOSED = 7
"""State of a connection that was reset, as in Linux's `tcp_states.h`."""


def tcp_state(peer: socket.socket) -> int | None:
    """The state of a TCP connection; None for other sockets."""
    with suppress(OSError):
        return peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    return None


def find_connection(request: Request) -> ClientConnection:
    """The connection of a request, as it is before the response."""
    transport = find_transport(request)
    if transport is None:
        return ClientConnection(None, None, was_open=True)
    peer: Any = transport.get_extra_info("socket")
    try:
        return ClientConnection(transport, os.dup(peer.fileno()), was_open=not transport.is_closing())
    except (OSError, ValueError):  # the client has disconnected already
        return ClientConnection(transport, None, was_open=False)
