"""The optional arguments of publishing and notifying: the same over HTTP and in a transaction."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, TypedDict
from uuid import UUID

RecipientType = Literal["user_dm", "guild_audit_channel", "dashboard_toast"]
"""The channel of a notification, which says what its recipient id is."""


class PublishOptions(TypedDict, total=False):
    """What an event may have besides its type and payload. Without `target` it goes to every subscriber of its type."""

    target: str | None
    source: str | None
    priority: int | None
    max_retries: int | None
    deliver_at: datetime | None
    expires_at: datetime | None
    idempotency_key: str | None
    ordering_key: str | None
    correlation_id: str | None
    traceparent: str | None


class NotifyOptions(TypedDict, total=False):
    """What a notification may have besides its recipient, template and payload."""

    guild_id: UUID | str | None
    locale: str | None
    scheduled_at: datetime | None
    expires_at: datetime | None
    dedupe_key: str | None
    incident: str | None


class HttpNotifyOptions(NotifyOptions, total=False):
    """The options over HTTP."""

    idempotency_key: str | None
    correlation_id: str | None


class SqlNotifyOptions(NotifyOptions, total=False):
    """The options in a transaction."""

    event_id: UUID | str | None
    source: str | None


class EventFilters(TypedDict, total=False):
    """Filters of a list of events. `type` may contain `*`."""

    status: str | None
    type: str | None
    source: str | None
    target: str | None
    limit: int
    cursor: str | None


class NotificationFilters(TypedDict, total=False):
    """Filters of a list of notifications."""

    recipient: str | None
    state: str | None
    template: str | None
    limit: int
    cursor: str | None


class ReplayFilters(TypedDict, total=False):
    """Which dead letters to replay. `type` may contain `*`; with `limit` only that many, the oldest first."""

    type: str | None
    source: str | None
    target: str | None
    signature: str | None
    error_code: str | None
    since: datetime | None
    until: datetime | None
    limit: int


class DeadLetterFilters(ReplayFilters, total=False):
    """Filters of a list of dead letters. `state` is unresolved by default."""

    state: Literal["unresolved", "resolved", "all"]
    cursor: str | None


def check_options(function: str, options: Mapping[str, Any], option_type: type) -> None:
    """Raise TypeError for an option that does not exist, as Python does for an argument."""
    names = option_type.__annotations__
    if unknown := options.keys() - names:
        raise TypeError(f"{function}() got unexpected options: {', '.join(sorted(unknown))}; it has {', '.join(names)}")
