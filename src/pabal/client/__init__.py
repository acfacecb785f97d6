"""The Python SDK: handlers and publishing inside one's own transaction, and a client for the hub's HTTP doors."""

from pabal.client.aio import AsyncClient
from pabal.client.buffer import AsyncBuffer, Buffer
from pabal.client.calls import Claimed, Item, Published, Settled
from pabal.client.errors import (
    ClientError,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    Refused,
    TooLarge,
    TooMany,
    Unauthenticated,
    Unavailable,
    Unverified,
)
from pabal.client.hub import Event, Hub
from pabal.client.outcomes import Dead, Retry, Snooze
from pabal.client.sync import Client
from pabal.client.webhook import verify

__all__ = [
    "AsyncBuffer",
    "AsyncClient",
    "Buffer",
    "Claimed",
    "Client",
    "ClientError",
    "Conflict",
    "Dead",
    "Event",
    "Forbidden",
    "Hub",
    "Invalid",
    "Item",
    "NotFound",
    "Published",
    "Refused",
    "Retry",
    "Settled",
    "Snooze",
    "TooLarge",
    "TooMany",
    "Unauthenticated",
    "Unavailable",
    "Unverified",
    "verify",
]
