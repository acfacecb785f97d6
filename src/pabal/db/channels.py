"""The bells of the house: what somebody may be waiting for.

A ring is a hint, never a message: whoever hears it looks into the table, which is the truth.
"""

from enum import StrEnum
from typing import NamedTuple


class Channel(StrEnum):
    EVENTS = "events"
    NOTIFICATIONS = "notifications"
    MESSAGES = "messages"
    RELAY = "relay"
    TOKENS = "tokens"
    TOASTS = "toasts"


CHANNEL_NAMES = frozenset[str](Channel)


class Wakeup(NamedTuple):
    """A bell that was rung, and for whom: an empty topic is everybody."""

    channel: Channel
    topic: str = ""

    def __str__(self) -> str:
        return f"{self.channel}/{self.topic}" if self.topic else str(self.channel)

    @classmethod
    def parse(cls, text: str) -> "Wakeup | None":
        name, _, topic = text.partition("/")
        return cls(Channel(name), topic) if name in CHANNEL_NAMES else None


NOTIFY_CHANNEL = "pabal"
"""The one NOTIFY channel; its payload is the sender and the rings, separated by spaces."""
