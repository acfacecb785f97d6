"""The roster: accounts as a list shows them, with what each has now; and what would end with one."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.relay.accounts import no_such

Q = beside(__file__)

MOST, MOST_ALONE = 1000, 10_000
"""How far a list counts, and how far for one account: one that has more has many."""


@dataclass(frozen=True, slots=True)
class Line:
    """An account and what it has now, as far as was counted."""

    id: UUID
    openclaw_user_id: str
    rate_limit_per_minute: int
    created_at: datetime
    disabled_at: datetime | None
    paired: int
    pending: int
    blocked: int
    open_messages: int
    sessions: int
    streams: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """A pairing code that waits for its user, and how long it still does."""

    code: str
    left: timedelta
    metadata: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Named:
    id: UUID
    openclaw_user_id: str


@dataclass(frozen=True, slots=True)
class Toll:
    """What would end with an account: what waits for it, its unused codes, its sessions, all its messages."""

    open_messages: int
    codes: int
    sessions: int
    messages: int
    conversations: int


async def newest(
    tx: Tx, *, name: str | None = None, before: tuple[datetime, UUID] | None = None, limit: int = 50
) -> list[Line]:
    """The newest accounts, or those whose names begin so; `before` is where the page before ended."""
    at, row = before or (None, None)
    return await tx.all(Line, Q.newest, account=None, name=name, before=at, before_id=row, limit=limit, most=MOST)


async def one(tx: Tx, account: UUID) -> Line:
    alone = {"name": None, "before": None, "before_id": None, "limit": 1, "most": MOST_ALONE}
    found = await tx.maybe(Line, Q.newest, account=account, **alone)
    if found is None:
        raise no_such(account)
    return found


async def waiting(tx: Tx, account: UUID) -> list[Waiting]:
    """An account's live codes: the first to end first."""
    return await tx.all(Waiting, Q.waiting, account=account)


async def names(tx: Tx, accounts: Collection[UUID]) -> dict[UUID, str]:
    """What these are called."""
    return {each.id: each.openclaw_user_id for each in await tx.all(Named, Q.names, accounts=[*accounts])}


async def toll(tx: Tx, account: UUID) -> Toll:
    """Count what would end with an account that is held from here on, so that the numbers stay true.

    Its conversations are held first and itself second, as whoever deletes it does.
    """
    await tx.run(Q.hold_conversations, account=account)
    found = await tx.value(Q.hold, account=account)
    if found is None:
        raise no_such(account)
    return await tx.one(Toll, Q.toll, account=account)
