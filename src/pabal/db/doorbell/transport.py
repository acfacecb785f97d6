"""What carries wakeups between processes: PostgreSQL's NOTIFY, or NATS.

A payload is the sender and the wakeups, separated by spaces: names of channels, services and ids, and no content. A
transport may lose any payload; listeners then find the rows when they poll.
"""

from collections.abc import Callable
from typing import Literal, Protocol

DoorbellTransport = Literal["nats", "notify", "polling"]
"""How wakeups of other processes arrive; `polling` if they do not."""
FORWARDED = "+"
"""Prefix of a sender whose payload is not forwarded to the other transport, because it was or need not be."""
ReceivePayload = Callable[[str], None]
"""Called with every payload that arrives."""
TransportChanged = Callable[[], None]
"""Called when a transport was connected, after which wakeups may have been missed, or disconnected."""


class WakeupTransport(Protocol):
    @property
    def is_connected(self) -> bool:
        """Whether payloads of other processes arrive."""
        ...

    async def run(self) -> None:
        """Connect, receive payloads, and connect again, until the task is cancelled."""
        ...

    async def send(self, payload: str) -> None:
        """Send a payload to the other processes. Raises Unavailable."""
        ...
