"""The listening socket: bound here, or inherited from systemd or from the supervisor."""

import errno
import os
import socket
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass

from pabal.core.errors import PortInUse, SetupError
from pabal.settings import Settings

TCP_USER_TIMEOUT_MS = 30_000
"""Milliseconds after which a connection whose peer acknowledges nothing is closed."""
BACKLOG = 2048
FIRST_INHERITED_FD = 3
"""Where systemd's protocol begins (sd_listen_fds)."""
INHERITED_VARIABLE = "PABAL_SUPERVISED"
"""How a supervisor tells a child its file descriptors (listening socket, channel), and whether it is the first."""


@dataclass(frozen=True, slots=True)
class InheritedSockets:
    """What a child gets from its supervisor."""

    listener: socket.socket
    channel: socket.socket
    is_first: bool
    """Whether no other child accepts requests. Only then it answers on the socket while it waits for its database."""


def open_listener(settings: Settings) -> socket.socket:
    """The socket of systemd's socket activation, or else a new one."""
    return activated_listener(os.environ, os.getpid()) or bind_listener(settings.host, settings.port)


def bind_listener(host: str, port: int, variables: str = "PABAL_HOST and PABAL_PORT") -> socket.socket:
    """Bind the port before anything else starts, so that a port in use costs nothing."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    set_user_timeout(listener)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        problem, options = f"Cannot listen on {host}:{port}: {error.strerror}", f"--host and --port, or {variables}"
        if error.errno == errno.EADDRINUSE:
            text = f"{problem}. Stop the process that uses it, or choose another address with {options}"
            raise PortInUse(text) from None
        raise SetupError(f"{problem}. Choose an address of this host with {options}") from None
    return listener


def activated_listener(environ: MutableMapping[str, str], pid: int) -> socket.socket | None:
    """The socket that systemd bound for this process (LISTEN_FDS). Children must not mistake it for theirs."""
    owner, count = environ.pop("LISTEN_PID", ""), environ.pop("LISTEN_FDS", "")
    environ.pop("LISTEN_FDNAMES", None)
    if owner != str(pid) or not count.isdecimal() or count == "0":
        return None
    if count != "1":
        raise SetupError(f"LISTEN_FDS passes {count} sockets; configure one ListenStream in the socket unit")
    listener = socket.socket(fileno=FIRST_INHERITED_FD)
    if listener.family not in {socket.AF_INET, socket.AF_INET6} or listener.type != socket.SOCK_STREAM:
        raise SetupError("LISTEN_FDS passes a socket that is not TCP; set ListenStream to a port in the socket unit")
    listener.set_inheritable(False)
    set_user_timeout(listener)
    return listener


def set_user_timeout(listener: socket.socket) -> None:
    """Close a stream whose client vanished: its pings stay unacknowledged. Accepted sockets inherit the option."""
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, TCP_USER_TIMEOUT_MS)


def inherited_sockets(environ: MutableMapping[str, str]) -> InheritedSockets | None:
    """The sockets of a supervised child; None in a process that was started otherwise."""
    value = environ.pop(INHERITED_VARIABLE, "")
    if not value:
        return None
    first, *numbers = value.split(",")
    listener, channel = (socket.socket(fileno=int(number)) for number in numbers)
    for inherited in (listener, channel):
        inherited.set_inheritable(False)
    return InheritedSockets(listener, channel, first == "first")


def format_inherited(sockets: Sequence[int], *, is_first: bool) -> str:
    """The value of the variable that `inherited_sockets` reads."""
    return ",".join(["first" if is_first else "further", *map(str, sockets)])
