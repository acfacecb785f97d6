"""Again: a notice that failed is asked for once more, when whatever was in its way is mended.

It becomes a request of its own: three attempts are all that one has, and Discord tells a repeat by the request. The
first stays as it ended.
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
from pabal.notifications.templates.catalogue import TemplateCatalogue

Q = load_queries(__file__)


@dataclass(frozen=True, slots=True)
class ResendSource:
    """What a request asked for that may be asked for again."""

    recipient_type: str
    recipient_id: str
    guild_id: UUID | None
    template_key: str
    payload: dict[str, Any]
    state: str
    locale: str | None
    expires_at: datetime | None
    incident: str | None
    event_id: UUID | None
    source_service: str | None
    correlation_id: str | None
    is_expired: bool


@dataclass(frozen=True, slots=True)
class Resend:
    """A request that asked for a failed one again, and how it stands."""

    id: UUID
    state: str

    @property
    def is_pending_or_sent(self) -> bool:
        """Whether it waits or has arrived; one that came to nothing is in nobody's way."""
        return self.state in {"pending", "sent"}


async def resend_notification(
    tx: Tx, catalogue: TemplateCatalogue, notification_id: UUID, actor: Actor
) -> RequestedNotification:
    """Ask for the same as a request that failed, unless that waits or has arrived already, or its time is over.

    What the recipient wants and whether the address takes anything is looked at as with every request, so it may be
    suppressed at once. The rule that made the first did not make this one: whoever asks did.
    """
    ended = await tx.maybe(ResendSource, Q.lock_failed_request, id=notification_id)
    if ended is None:
        raise NotFound(f"there is no notification {notification_id}")
    if ended.state != "failed":
        raise Conflict(f"the notification cannot be sent again: it is {ended.state}")
    if ended.is_expired:
        raise Conflict("the notification cannot be sent again: its time is over")
    for each in await list_resends(tx, notification_id):
        if each.is_pending_or_sent:
            raise Conflict(f"the notification was sent again already, as {each.id}")
    [asked] = await request_notifications(tx, [draft_resend(notification_id, ended, catalogue)], actor)
    await record_action(
        tx, actor, "notification.again", str(notification_id), template=ended.template_key, again=str(asked.id)
    )
    return asked


async def list_resends(tx: Tx, notification_id: UUID) -> list[Resend]:
    """The requests that asked for this one again, the first first."""
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
