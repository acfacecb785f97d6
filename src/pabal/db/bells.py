"""The bells of the house: what somebody may be waiting for.

A ring is a hint, never a message: whoever hears it looks into the table, which is the truth.
"""

from enum import StrEnum
from typing import NamedTuple


class Bell(StrEnum):
    EVENTS = "events"
    NOTIFICATIONS = "notifications"
    MESSAGES = "messages"
    RELAY = "relay"
    TOKENS = "tokens"
    TOASTS = "toasts"


NAMES = frozenset[str](Bell)


class Ring(NamedTuple):
    """A bell that was rung, and for whom: an empty topic is everybody."""

    bell: Bell
    topic: str = ""

    def __str__(self) -> str:
        return f"{self.bell}/{self.topic}" if self.topic else str(self.bell)

    @classmethod
    def read(cls, text: str) -> "Ring | None":
        name, _, topic = text.partition("/")
        return cls(Bell(name), topic) if name in NAMES else None


CHANNEL = "pabal"
"""The one NOTIFY channel; its payload is the sender and the rings, separated by spaces."""
