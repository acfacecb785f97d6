"""Read notifications, their decisions and their attempts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from pabal.core.errors import NotFound
from pabal.db.bounded_scan import MAX_SCANNED_ROWS, ScanCursor, ScannedRow, ScanPage, bounded_scan, make_scan_page
from pabal.db.queries import Query, load_queries
from pabal.db.tx import Tx
from pabal.notifications.decision.decide import NotificationChannel
from pabal.notifications.states import AttemptOutcome, NotificationReason, NotificationState, Priority, RecipientType

Q = load_queries(__file__)


@dataclass(frozen=True, slots=True)
class NotificationAccess:
    """Which notifications a reader may see: those its service requested or rules made of its events, or all."""

    service: str
    all_services: bool = False


@dataclass(frozen=True, slots=True)
class Notification:
    """A notification. `decision` lists the steps of the decision to send it or not."""

    id: UUID
    recipient_type: RecipientType
    recipient_id: str
    guild_id: UUID | None
    template_key: str
    payload: dict[str, Any]
    state: NotificationState
    reason: NotificationReason | None
    decision: Sequence[str]
    priority: Priority
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
    """One attempt to send a notification."""

    attempt: int
    worker: str | None
    started_at: datetime
    ended_at: datetime
    outcome: AttemptOutcome
    why: str | None


@dataclass(frozen=True, slots=True)
class NotificationFilter:
    """Which notifications to list. None matches everything."""

    recipient: str | None = None
    state: NotificationState | None = None
    template: str | None = None


async def find_notification(tx: Tx, notification_id: UUID, access: NotificationAccess) -> Notification:
    for notification in await find_notifications(tx, [notification_id], access):
        return notification
    raise NotFound(f"No such notification: {notification_id}")


async def find_notifications(tx: Tx, ids: Sequence[UUID], access: NotificationAccess) -> list[Notification]:
    """Return the notifications among these ids that the reader may see, the newest first."""
    return await tx.all(Notification, Q.find_notifications, ids=ids, service=access.service, all=access.all_services)


async def list_notification_attempts(tx: Tx, notification_id: UUID) -> list[NotificationAttempt]:
    """The attempts of a notification, the oldest first."""
    return await tx.all(NotificationAttempt, Q.list_attempts, id=notification_id)


OPERATOR_ACCESS = NotificationAccess("hub", all_services=True)


@dataclass(frozen=True, slots=True)
class NotificationSummary:
    """A notification in a list: without its payload."""

    id: UUID
    recipient_type: RecipientType
    recipient_id: str
    template_key: str
    state: NotificationState
    reason: NotificationReason | None
    priority: Priority
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
    """Return a page of summaries of all services, the newest first. `before` is the end of the previous page."""
    scanned = await _scan_matching_notifications(
        tx, OPERATOR_ACCESS, criteria, before=before, limit=limit, scan_limit=scan_limit
    )
    ids = [row.id for row in scanned if row.is_match]
    return make_scan_page(await tx.all(NotificationSummary, Q.list_summaries, ids=ids) if ids else [], scanned, limit)


async def scan_notifications(
    tx: Tx,
    access: NotificationAccess,
    criteria: NotificationFilter,
    *,
    before: ScanCursor | None = None,
    limit: int = 50,
    scan_limit: int = MAX_SCANNED_ROWS,
) -> ScanPage[Notification]:
    """Return a page of the visible notifications, the newest first. `before` is the end of the previous page."""
    scanned = await _scan_matching_notifications(
        tx, access, criteria, before=before, limit=limit, scan_limit=scan_limit
    )
    ids = [row.id for row in scanned if row.is_match]
    return make_scan_page(await find_notifications(tx, ids, access) if ids else [], scanned, limit)


async def _scan_matching_notifications(
    tx: Tx,
    access: NotificationAccess,
    criteria: NotificationFilter,
    *,
    before: ScanCursor | None,
    limit: int,
    scan_limit: int,
) -> list[ScannedRow]:
    """Scan the partitions of the best index for the filter, a few rows first."""
    before_time, before_id = before or (None, None)
    scan = await _choose_scan(tx, access, criteria)

    async def scan_rows(reach: int) -> list[ScannedRow]:
        return await tx.all(
            ScannedRow,
            scan.query,
            partitions=scan.partitions,
            reach=reach,
            state=criteria.state,
            template=criteria.template,
            before=before_time,
            before_id=before_id,
            limit=limit,
            **scan.arguments,
        )

    return await bounded_scan(scan_rows, limit, max(limit, scan_limit // len(scan.partitions)))


@dataclass(frozen=True, slots=True)
class NotificationScan:
    """A scan query and the values of its index's first column to scan."""

    query: Query
    partitions: Sequence[str]
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])


async def _choose_scan(tx: Tx, access: NotificationAccess, criteria: NotificationFilter) -> NotificationScan:
    """Choose the most selective index for the filter."""
    if criteria.recipient is not None:
        arguments = {"recipient": criteria.recipient, "service": access.service, "all": access.all_services}
        return NotificationScan(Q.scan_by_recipient, [*NotificationChannel], arguments)
    services = await tx.column(Q.list_source_services) if access.all_services else [access.service]
    query = Q.scan_by_service if criteria.state in {None, "sent"} else Q.scan_unsent_by_service
    return NotificationScan(query, services)
