"""Read the log: who did what, newest first."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pabal.core.errors import Invalid
from pabal.db.queries import beside
from pabal.db.tx import Tx

Q = beside(__file__)

HIGHEST = (1 << 63) - 1
DIGITS = len(str(HIGHEST))


@dataclass(frozen=True, slots=True)
class Entry:
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
class Wanted:
    """Which deeds: `action` is the beginning of one, `since` how far back. What is not said does not matter."""

    actor: str | None = None
    action: str | None = None
    subject: str | None = None
    since: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """Some of the log. `cursor` asks for the next page, and is None on the last."""

    items: list[Entry]
    cursor: str | None


async def history(tx: Tx, wanted: Wanted, limit: int, cursor: str | None = None) -> Page:
    """The newest `limit` deeds, or those before `cursor`."""
    query = Q.all if wanted.subject is None else Q.about
    subject = {} if wanted.subject is None else {"subject": wanted.subject}
    found = await tx.all(
        Entry,
        query,
        actor=wanted.actor,
        action=wanted.action,
        since=wanted.since,
        before=place(cursor),
        limit=limit + 1,
        **subject,
    )
    more = len(found) > limit
    return Page(found[:limit], str(found[limit - 1].id) if more else None)


def place(cursor: str | None) -> int:
    if cursor is None:
        return HIGHEST
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) < DIGITS):
        raise Invalid.one("cursor", "is not one of ours")
    return int(cursor)
