"""Lists of notifications: whatever is looked for among however many, one look goes through so many and no more."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from pabal.core.sight import MAX_SCANNED_ROWS, ScanCursor, ScannedRow, ScanPage, bounded_scan, make_scan_page
from pabal.db.queries import Query, load_queries
from pabal.db.tx import Tx
from pabal.notifications.plan import NotificationChannel
from pabal.notifications.read import Notification, NotificationAccess, NotificationFilter, find_notifications

Q = load_queries(__file__)

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
