"""Read: what a notification is, what was decided about it and what became of it, for the service that asked for it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from pabal.core.errors import NotFound
from pabal.db.queries import beside
from pabal.db.tx import Tx

Q = beside(__file__)


@dataclass(frozen=True, slots=True)
class Reader:
    """Who asks: a service sees what it asked for and what rules made of its events; `all` sees everything."""

    service: str
    all: bool = False


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
class Attempt:
    """One try at sending it."""

    attempt: int
    worker: str | None
    started_at: datetime
    ended_at: datetime
    outcome: str
    why: str | None


@dataclass(frozen=True, slots=True)
class Filter:
    """Which notifications."""

    recipient: str | None = None
    state: str | None = None
    template: str | None = None


async def find(tx: Tx, row: UUID, who: Reader) -> Notification:
    for notification in await several(tx, [row], who):
        return notification
    raise NotFound(f"there is no notification {row}")


async def several(tx: Tx, ids: Sequence[UUID], who: Reader) -> list[Notification]:
    """Those of these that there are, for whoever may see them; the newest first."""
    return await tx.all(Notification, Q.several, ids=ids, service=who.service, all=who.all)


async def attempts(tx: Tx, row: UUID) -> list[Attempt]:
    """The attempts at a notification, the first first."""
    return await tx.all(Attempt, Q.attempts, id=row)
