"""Read: what a notification is, what was decided about it and what became of it, for the service that asked for it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from pabal.core.errors import NotFound
from pabal.db.bounded_scan import MAX_SCANNED_ROWS, ScanCursor, ScannedRow, ScanPage, bounded_scan, make_scan_page
from pabal.db.queries import Query, load_queries
from pabal.db.tx import Tx
from pabal.notifications.decision.decide import NotificationChannel

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


OPERATOR_ACCESS = NotificationAccess("hub", all_services=True)


@dataclass(frozen=True, slots=True)
class NotificationSummary:
    """A notification as a long list shows it: without what it carries."""

    id: UUID
    recipient_type: str
    recipient_id: str
    template_key: str
    state: str
    reason: str | None
    priority: int
    created_at: datetime
    sent_at: datetime | None


async def scan_notification_summaries(
    tx: Tx,
    criteria: NotificationFilter,
    *,
    before: ScanCursor | None = None,
    limit: int = 50,
    scan_limit: int = MAX_SCANNED_ROWS,
) -> ScanPage[NotificationSummary]:
    """Everybody's as a page shows them, the newest first; `before` is where the look before ended."""
    seen = await _scan_matching_notifications(
        tx, OPERATOR_ACCESS, criteria, before=before, limit=limit, scan_limit=scan_limit
    )
    ids = [each.id for each in seen if each.is_match]
    return make_scan_page(await tx.all(NotificationSummary, Q.list_summaries, ids=ids) if ids else [], seen, limit)


async def scan_notifications(
    tx: Tx,
    access: NotificationAccess,
    criteria: NotificationFilter,
    *,
    before: ScanCursor | None = None,
    limit: int = 50,
    scan_limit: int = MAX_SCANNED_ROWS,
) -> ScanPage[Notification]:
    """Those that somebody may see as they stand, the newest first; `before` is where the look before ended."""
    seen = await _scan_matching_notifications(tx, access, criteria, before=before, limit=limit, scan_limit=scan_limit)
    ids = [each.id for each in seen if each.is_match]
    return make_scan_page(await find_notifications(tx, ids, access) if ids else [], seen, limit)


async def _scan_matching_notifications(
    tx: Tx,
    access: NotificationAccess,
    criteria: NotificationFilter,
    *,
    before: ScanCursor | None,
    limit: int,
    scan_limit: int,
) -> list[ScannedRow]:
    """Look along every road that leads to what is chosen, a little way first."""
    at, row = before or (None, None)
    said = {"state": criteria.state, "template": criteria.template, "before": at, "before_id": row, "limit": limit}
    query, roads, more = await _notification_scan_queries(tx, access, criteria)

    async def along(reach: int) -> list[ScannedRow]:
        return await tx.all(ScannedRow, query, roads=roads, reach=reach, **said, **more)

    return await bounded_scan(along, limit, max(limit, scan_limit // len(roads)))


async def _notification_scan_queries(
    tx: Tx, access: NotificationAccess, criteria: NotificationFilter
) -> tuple[Query, list[str], dict[str, Any]]:
    """The index that knows the most of what is chosen, and whose part of it to look through."""
    if criteria.recipient is not None:
        return (
            Q.scan_by_recipient,
            [*NotificationChannel],
            {"recipient": criteria.recipient, "service": access.service, "all": access.all_services},
        )
    roads = await tx.column(Q.list_source_services) if access.all_services else [access.service]
    return (Q.scan_by_service if criteria.state in {None, "sent"} else Q.scan_unsent_by_service), roads, {}
