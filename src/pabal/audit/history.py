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
