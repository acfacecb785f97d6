"""Read the audit log, newest entries first."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pabal.core.errors import Invalid
from pabal.db.queries import load_queries
from pabal.db.tx import Tx

Q = load_queries(__file__)

MAX_ID = (1 << 63) - 1
MAX_ID_DIGITS = len(str(MAX_ID))


@dataclass(frozen=True, slots=True)
class AuditLogEntry:
    """An entry of the audit log."""

    id: int
    at: datetime
    actor: str
    action: str
    subject: str | None
    details: dict[str, Any]
    client_ip: str | None
    request_id: str | None


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """A filter of entries. `action` is a prefix; `since` is a maximum age. None matches everything."""

    actor: str | None = None
    action: str | None = None
    subject: str | None = None
    since: timedelta | None = None


@dataclass(frozen=True, slots=True)
class AuditPage:
    """A page of the log. `cursor` is None on the last page."""

    items: list[AuditLogEntry]
    cursor: str | None


async def list_audit_log(tx: Tx, audit_filter: AuditFilter, limit: int, cursor: str | None = None) -> AuditPage:
    """List the newest `limit` entries, or those before `cursor`."""
    query = Q.list_entries if audit_filter.subject is None else Q.list_subject_entries
    subject = {} if audit_filter.subject is None else {"subject": audit_filter.subject}
    entries = await tx.all(
        AuditLogEntry,
        query,
        actor=audit_filter.actor,
        action=audit_filter.action,
        since=audit_filter.since,
        before=parse_audit_cursor(cursor),
        limit=limit + 1,
        **subject,
    )
    more = len(entries) > limit
    return AuditPage(entries[:limit], str(entries[limit - 1].id) if more else None)


def parse_audit_cursor(cursor: str | None) -> int:
    if cursor is None:
        return MAX_ID
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) < MAX_ID_DIGITS):
        raise Invalid.of_field("cursor", "is not a valid cursor")
    return int(cursor)


MAX_SCANNED_IDS = 50_000
"""How many ids a selective filter scans."""
ID_TIME_SLACK = 1_000
"""Ids and times are not in exactly the same order: the scan starts this many ids before the first matching time."""


@dataclass(frozen=True, slots=True)
class AuditScan:
    """The result of a scan. `cursor` is None at the end of the log; `truncated` if older entries may match."""

    items: list[AuditLogEntry]
    cursor: str | None
    truncated: bool


@dataclass(frozen=True, slots=True)
class IdBounds:
    """The newest id before the cursor and the oldest id that may match; None in an empty log."""

    newest: int | None
    oldest: int | None


async def scan_audit_log(tx: Tx, audit_filter: AuditFilter, limit: int, cursor: str | None = None) -> AuditScan:
    """List the newest `limit` entries, or those before `cursor`, in a bounded part of the log."""
    before = parse_audit_cursor(cursor)
    bounds = await tx.one(IdBounds, Q.id_bounds, before=before, since=audit_filter.since, slack=ID_TIME_SLACK)
    if bounds.newest is None or bounds.oldest is None:
        return AuditScan([], None, truncated=False)
    is_selective = audit_filter.actor is not None or audit_filter.action is not None
    lowest_id = max(bounds.oldest, bounds.newest - MAX_SCANNED_IDS + 1) if is_selective else bounds.oldest
    entries = await _scan_entries(tx, audit_filter, before=before, lowest_id=lowest_id, limit=limit + 1)
    if len(entries) > limit:
        return AuditScan(entries[:limit], str(entries[limit - 1].id), truncated=False)
    has_older = lowest_id > bounds.oldest
    return AuditScan(entries, str(lowest_id) if has_older else None, truncated=has_older)


async def _scan_entries(
    tx: Tx, audit_filter: AuditFilter, *, before: int, lowest_id: int, limit: int
) -> list[AuditLogEntry]:
    arguments = {
        "actor": audit_filter.actor,
        "action": audit_filter.action,
        "since": audit_filter.since,
        "before": before,
        "lowest_id": lowest_id,
        "limit": limit,
    }
    if audit_filter.subject is None:
        return await tx.all(AuditLogEntry, Q.scan_entries, **arguments)
    return await tx.all(AuditLogEntry, Q.scan_subject_entries, subject=audit_filter.subject, **arguments)
