"""Read: what a notification is, what was decided about it and what became of it, for the service that asked for it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from pabal.core.errors import NotFound
from pabal.db.queries import load_queries
from pabal.db.tx import Tx

Q = load_queries(__file__)


@dataclass(frozen=True, slots=True)
class NotificationAccess:
    """Who asks: a service sees what it asked for and what rules made of its events; `all` sees everything."""

    service: str
    all_services: bool = False


@dataclass(frozen=True, slots=True)
class Notification:
    """A notification as it stands. `decision` is why it is sent or not, step by step."""

    id: UUID
    recipient_type: str
    recipient_id: str
    guild_id: UUID | None
    template_key: str
    payload: dict[str, Any]
    state: str
    reason: str | None
    decision: Sequence[str]
    priority: int
    attempt_count: int
    last_error: str | None
    scheduled_at: datetime
    expires_at: datetime | None
    sent_at: datetime | None
    ended_at: datetime | None
    created_at: datetime
    locale: str | None
    incident: str | None
    event_id: UUID | None
    rule_id: UUID | None
    source_service: str | None
    requested_by: str
    idempotency_key: str | None
    correlation_id: str | None
    again_of: UUID | None


@dataclass(frozen=True, slots=True)
class NotificationAttempt:
    """One try at sending it."""

    attempt: int
    worker: str | None
    started_at: datetime
    ended_at: datetime
    outcome: str
    why: str | None


@dataclass(frozen=True, slots=True)
class NotificationFilter:
    """Which notifications."""

    recipient: str | None = None
    state: str | None = None
    template: str | None = None


async def find_notification(tx: Tx, notification_id: UUID, access: NotificationAccess) -> Notification:
    for notification in await find_notifications(tx, [notification_id], access):
        return notification
    raise NotFound(f"there is no notification {notification_id}")


async def find_notifications(tx: Tx, ids: Sequence[UUID], access: NotificationAccess) -> list[Notification]:
    """Those of these that there are, for whoever may see them; the newest first."""
    return await tx.all(Notification, Q.find_notifications, ids=ids, service=access.service, all=access.all_services)


async def list_notification_attempts(tx: Tx, notification_id: UUID) -> list[NotificationAttempt]:
    """The attempts at a notification, the first first."""
    return await tx.all(NotificationAttempt, Q.list_attempts, id=notification_id)
