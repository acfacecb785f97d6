"""The TCP connection of a stream: notice a client that vanished, and reset one that must not reconnect at once."""

import asyncio
import socket
import struct
from datetime import timedelta
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
