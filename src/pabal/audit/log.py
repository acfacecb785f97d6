"""Read the log: who did what, newest first."""

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
    """A deed as the log holds it."""

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
    """Which deeds: `action` is the beginning of one, `since` how far back. What is not said does not matter."""

    actor: str | None = None
    action: str | None = None
    subject: str | None = None
    since: timedelta | None = None


@dataclass(frozen=True, slots=True)
class AuditPage:
    """Some of the log. `cursor` asks for the next page, and is None on the last."""

    items: list[AuditLogEntry]
    cursor: str | None


async def list_audit_log(tx: Tx, audit_filter: AuditFilter, limit: int, cursor: str | None = None) -> AuditPage:
    """The newest `limit` deeds, or those before `cursor`."""
    query = Q.list_entries if audit_filter.subject is None else Q.list_subject_entries
    subject = {} if audit_filter.subject is None else {"subject": audit_filter.subject}
    found = await tx.all(
        AuditLogEntry,
        query,
        actor=audit_filter.actor,
        action=audit_filter.action,
        since=audit_filter.since,
        before=parse_audit_cursor(cursor),
        limit=limit + 1,
        **subject,
    )
    more = len(found) > limit
    return AuditPage(found[:limit], str(found[limit - 1].id) if more else None)


def parse_audit_cursor(cursor: str | None) -> int:
    if cursor is None:
        return MAX_ID
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) < MAX_ID_DIGITS):
        raise Invalid.of_field("cursor", "is not one of ours")
    return int(cursor)


MAX_SCANNED_IDS = 50_000
"""Ids that are looked through for what is rare."""
ID_TIME_SLACK = 1_000
"""Ids are drawn a moment before or after the time beside them: so many more are looked at before the first in time."""


@dataclass(frozen=True, slots=True)
class AuditScan:
    """What was found. `cursor` asks for what is before, None at the end; `cut` says that there may be more."""

    items: list[AuditLogEntry]
    cursor: str | None
    truncated: bool


@dataclass(frozen=True, slots=True)
class IdBounds:
    """The newest row before the cursor, and the oldest that may be meant; neither in an empty log."""

    newest: int | None
    oldest: int | None


async def scan_audit_log(tx: Tx, audit_filter: AuditFilter, limit: int, cursor: str | None = None) -> AuditScan:
    """The newest `limit` deeds, or those before `cursor`: those among a portion of the log."""
    before = parse_audit_cursor(cursor)
    ends = await tx.one(IdBounds, Q.id_bounds, before=before, since=audit_filter.since, slack=ID_TIME_SLACK)
    if ends.newest is None or ends.oldest is None:
        return AuditScan([], None, truncated=False)
    rare = audit_filter.actor is not None or audit_filter.action is not None
    floor = max(ends.oldest, ends.newest - MAX_SCANNED_IDS + 1) if rare else ends.oldest
    found = await _scan_entries(tx, audit_filter, before=before, floor=floor, limit=limit + 1)
    if len(found) > limit:
        return AuditScan(found[:limit], str(found[limit - 1].id), truncated=False)
    further = floor > ends.oldest
    return AuditScan(found, str(floor) if further else None, truncated=further)


async def _scan_entries(tx: Tx, wanted: AuditFilter, *, before: int, floor: int, limit: int) -> list[AuditLogEntry]:
    given = {
        "actor": wanted.actor,
        "action": wanted.action,
        "since": wanted.since,
        "before": before,
        "floor": floor,
        "limit": limit,
    }
    if wanted.subject is None:
        return await tx.all(AuditLogEntry, Q.scan_entries, **given)
    return await tx.all(AuditLogEntry, Q.scan_subject_entries, subject=wanted.subject, **given)
