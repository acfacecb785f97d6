"""The channels of the doorbell.

A wakeup is a hint and carries no data: the listener reads the table.
"""

from enum import StrEnum
from typing import NamedTuple


class Channel(StrEnum):
    EVENTS = "events"
    NOTIFICATIONS = "notifications"
    MESSAGES = "messages"
    RELAY = "relay"
    ANSWERS = "answers"
    TOKENS = "tokens"
    TOASTS = "toasts"
    WAITERS = "waiters"
    POLLING = "polling"
    """Announces polling under load; see load_polling.py."""


CHANNEL_NAMES = frozenset[str](Channel)


POLLED = "*"
"""The topic of the wakeups of polling under load: any service may have new events. No service has this name."""


class Wakeup(NamedTuple):
    """A notification on a channel. An empty topic addresses all listeners of the channel."""

    channel: Channel
    topic: str = ""

    def __str__(self) -> str:
        return f"{self.channel}/{self.topic}" if self.topic else str(self.channel)

    @classmethod
    def parse(cls, text: str) -> "Wakeup | None":
        name, _, topic = text.partition("/")
        return cls(Channel(name), topic) if name in CHANNEL_NAMES else None


NOTIFY_CHANNEL = "pabal"
"""The one PostgreSQL NOTIFY channel. Its payload is the sender and the wakeups, separated by spaces."""
