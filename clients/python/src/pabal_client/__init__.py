"""The Python client of Pabal: events, notifications, dead letters, chat bots, webhooks, and your own transaction."""

from pabal_client.app import App, Event
from pabal_client.async_client import AsyncClient
from pabal_client.batching import AsyncBuffer, Buffer
from pabal_client.bot import Bot
from pabal_client.errors import (
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
from pabal_client.outcomes import Dead, Retry, Snooze
from pabal_client.relay_requests import ChatMessage
from pabal_client.requests import BatchPublishItem, PublishedEvent, PulledEvent, ResultPage, SettleItem
from pabal_client.resources import AcceptedNotification, BatchNotifyItem
from pabal_client.sync_client import Client
from pabal_client.webhook import verify_webhook

__all__ = [
    "AcceptedNotification",
    "ApiError",
    "App",
    "AsyncBuffer",
    "AsyncClient",
    "AuthenticationError",
    "BatchNotifyItem",
    "BatchPublishItem",
    "Bot",
    "Buffer",
    "ChatMessage",
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
    "ResultPage",
    "Retry",
    "SettleItem",
    "Snooze",
    "ValidationFailedError",
    "WebhookVerificationError",
    "verify_webhook",
]
