"""Resend a failed notification after its cause is fixed.

The resend is a new notification: it has three attempts and a nonce of its own. The failed one stays as it is.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from pabal.audit.record import record_action
from pabal.core.actor import Actor
from pabal.core.errors import Conflict, NotFound
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.notifications.decision.decide import NotificationChannel
from pabal.notifications.requests import NotificationDraft, RequestedNotification, request_notifications
from pabal.notifications.states import NotificationState, RecipientType
from pabal.notifications.templates.catalogue import TemplateCatalogue

Q = load_queries(__file__)


@dataclass(frozen=True, slots=True)
class ResendSource:
    """The content of a notification to resend."""

    recipient_type: RecipientType
    recipient_id: str
    guild_id: UUID | None
    template_key: str
    payload: dict[str, Any]
    state: NotificationState
    locale: str | None
    expires_at: datetime | None
    incident: str | None
    event_id: UUID | None
    source_service: str | None
    correlation_id: str | None
    is_expired: bool


@dataclass(frozen=True, slots=True)
class Resend:
    """A resend of a failed notification."""

    id: UUID
    state: NotificationState

    @property
    def is_pending_or_sent(self) -> bool:
        """Whether it prevents another resend. A failed or suppressed one does not."""
        return self.state in {"pending", "sent"}


async def resend_notification(
    tx: Tx, catalogue: TemplateCatalogue, notification_id: UUID, actor: Actor
) -> RequestedNotification:
    """Request a failed notification again, unless it has expired or another resend is pending or sent.

    It is decided anew, so it may be suppressed at once. It has no rule: the actor requested it.
    """
    source = await tx.maybe(ResendSource, Q.lock_failed_request, id=notification_id)
    if source is None:
        raise NotFound(f"No such notification: {notification_id}")
    if source.state != "failed":
        raise Conflict(f"The notification cannot be sent again: it is {source.state}")
    if source.is_expired:
        raise Conflict("The notification cannot be sent again: it has expired")
    for resend in await list_resends(tx, notification_id):
        if resend.is_pending_or_sent:
            raise Conflict(f"The notification was already sent again as {resend.id}")
    [requested] = await request_notifications(tx, [draft_resend(notification_id, source, catalogue)], actor)
    details = {"template": source.template_key, "again": str(requested.id)}
    await record_action(tx, actor, "notification.again", str(notification_id), **details)
    return requested


async def list_resends(tx: Tx, notification_id: UUID) -> list[Resend]:
    """The resends of a notification, the oldest first."""
    return await tx.all(Resend, Q.list_resends, id=notification_id)


def draft_resend(notification_id: UUID, source: ResendSource, catalogue: TemplateCatalogue) -> NotificationDraft:
    return NotificationDraft(
        channel=NotificationChannel(source.recipient_type),
        recipient=source.recipient_id,
        template=catalogue.get(source.template_key),
        payload=source.payload,
        guild=source.guild_id,
        locale=source.locale,
        expires_at=source.expires_at,
        incident=source.incident,
        event=source.event_id,
        source=source.source_service,
        correlation_id=source.correlation_id,
        again_of=notification_id,
    )
