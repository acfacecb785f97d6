"""The Python SDK: event handlers, publishing inside your own transaction, and clients for the HTTP API."""

from pabal.client.app import App, Event
from pabal.client.async_client import AsyncClient
from pabal.client.batching import AsyncBuffer, Buffer
from pabal.client.errors import (
    ApiError,
    AuthenticationError,
    ClientError,
    ConflictError,
    HubUnavailableError,
    NotFoundError,
    PayloadTooLargeError,
    PermissionDeniedError,
    RateLimitError,
    ValidationFailedError,
    WebhookVerificationError,
)
from pabal.client.outcomes import Dead, Retry, Snooze
from pabal.client.requests import BatchPublishItem, PublishedEvent, PulledEvent, SettleItem
from pabal.client.sync_client import Client
from pabal.client.webhook import verify_webhook

__all__ = [
    "ApiError",
    "App",
    "AsyncBuffer",
    "AsyncClient",
    "AuthenticationError",
    "BatchPublishItem",
    "Buffer",
    "Client",
    "ClientError",
    "ConflictError",
    "Dead",
    "Event",
    "HubUnavailableError",
    "NotFoundError",
    "PayloadTooLargeError",
    "PermissionDeniedError",
    "PublishedEvent",
    "PulledEvent",
    "RateLimitError",
    "Retry",
    "SettleItem",
    "Snooze",
    "ValidationFailedError",
    "WebhookVerificationError",
    "verify_webhook",
]
