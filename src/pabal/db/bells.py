"""The bells of the house: what somebody may be waiting for.

A ring is a hint, never a message: whoever hears it looks into the table, which is the truth.
"""

from enum import StrEnum


class Bell(StrEnum):
    EVENTS = "events"
    NOTIFICATIONS = "notifications"
    MESSAGES = "messages"
    TOKENS = "tokens"


CHANNEL = "pabal"
"""The one NOTIFY channel; its payload is the bells rung, separated by spaces."""
