"""The roster: accounts as a list shows them, with what each has now; and what would end with one."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.relay.accounts import account_not_found

Q = load_queries(__file__)

MAX_COUNT_IN_LIST, MAX_COUNT_FOR_ONE = 1000, 10_000
"""How far a list counts, and how far for one account: one that has more has many."""


@dataclass(frozen=True, slots=True)
class AccountSummary:
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
class LivePairingCode:
    """A pairing code that waits for its user, and how long it still does."""

    code: str
    expires_in: timedelta
    metadata: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class AccountName:
    id: UUID
    openclaw_user_id: str


@dataclass(frozen=True, slots=True)
class DeletionImpact:
    """What would end with an account: what waits for it, its unused codes, its sessions, all its messages."""

    open_messages: int
    codes: int
    sessions: int
    messages: int
    conversations: int


async def list_account_summaries(
    tx: Tx, *, name: str | None = None, before: tuple[datetime, UUID] | None = None, limit: int = 50
) -> list[AccountSummary]:
    """The newest accounts, or those whose names begin so; `before` is where the page before ended."""
    at, row = before or (None, None)
    return await tx.all(
        AccountSummary,
        Q.list_account_summaries,
        account=None,
        name=name,
        before=at,
        before_id=row,
        limit=limit,
        most=MAX_COUNT_IN_LIST,
    )


async def find_account_summary(tx: Tx, account: UUID) -> AccountSummary:
    alone = {"name": None, "before": None, "before_id": None, "limit": 1, "most": MAX_COUNT_FOR_ONE}
    found = await tx.maybe(AccountSummary, Q.list_account_summaries, account=account, **alone)
    if found is None:
        raise account_not_found(account)
    return found


async def list_live_pairing_codes(tx: Tx, account: UUID) -> list[LivePairingCode]:
    """An account's live codes: the first to end first."""
    return await tx.all(LivePairingCode, Q.list_live_pairing_codes, account=account)


async def find_account_names(tx: Tx, accounts: Collection[UUID]) -> dict[UUID, str]:
    """What these are called."""
    return {
        each.id: each.openclaw_user_id for each in await tx.all(AccountName, Q.find_account_names, accounts=[*accounts])
    }


async def measure_deletion_impact(tx: Tx, account: UUID) -> DeletionImpact:
    """Count what would end with an account that is held from here on, so that the numbers stay true.

    Its conversations are held first and itself second, as whoever deletes it does.
    """
    await tx.run(Q.lock_account_conversations, account=account)
    found = await tx.value(Q.lock_existing_account, account=account)
    if found is None:
        raise account_not_found(account)
    return await tx.one(DeletionImpact, Q.measure_deletion_impact, account=account)
