"""Accounts: bot owners, each a tenant, with a relay token that is told once."""

import secrets
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from pabal.audit.record import record_action
from pabal.core.actor import HUB_ACTOR, Actor
from pabal.core.errors import Conflict, Invalid, NotFound
from pabal.core.ids import new_id
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.relay.auth import hash_relay_secret
from pabal.relay.conversations import cancel_messages
from pabal.relay.delivery.stream import ControlEventKind, send_control_event
from pabal.relay.pairing.sessions import EXPIRED_SESSION_RETENTION

Q = load_queries(__file__)

MAX_ACCOUNT_NAME_LENGTH = 200
SESSION_ACCOUNT_PREFIX = "session:"
"""What the names of accounts begin with that a session's first pairing made."""
DEFAULT_RATE_LIMIT = 60
MAX_RATE_LIMIT = 2**31 - 1
UNUSED_ACCOUNT_RETENTION = timedelta(days=30)
"""How long an account that a session made may have neither user nor client."""


@dataclass(frozen=True, slots=True)
class Account:
    """A bot owner. `openclaw_user_id` is the name it was given; one made by a session is called after it."""

    id: UUID
    openclaw_user_id: str
    rate_limit_per_minute: int
    has_token: bool
    created_at: datetime
    disabled_at: datetime | None


@dataclass(frozen=True, slots=True)
class AccountCounts:
    """What an account has now."""

    paired: int
    pending: int
    blocked: int
    live_codes: int
    sessions: int
    open_messages: int


@dataclass(frozen=True, slots=True)
class PurgedAccount:
    id: UUID
    openclaw_user_id: str


@dataclass(frozen=True, slots=True)
class AccountDetails:
    account: Account
    counts: AccountCounts


async def create_account(
    tx: Tx, name: str, actor: Actor, *, rate_limit: int = DEFAULT_RATE_LIMIT
) -> tuple[Account, str]:
    """Make an account and its relay token, which is told this once."""
    if not name.strip() or len(name) > MAX_ACCOUNT_NAME_LENGTH or not name.isprintable():
        raise Invalid.of_field("name", f"is one line of 1 to {MAX_ACCOUNT_NAME_LENGTH} characters")
    if name.startswith(SESSION_ACCOUNT_PREFIX):
        raise Invalid.of_field("name", f"begins with {SESSION_ACCOUNT_PREFIX}, as only accounts made by sessions do")
    if not 1 <= rate_limit <= MAX_RATE_LIMIT:
        raise Invalid.of_field("rate_limit", "is at least 1 a minute")
    token = generate_relay_token()
    account = await tx.maybe(
        Account, Q.create_account, id=new_id(), name=name, token_hash=hash_relay_secret(token), rate_limit=rate_limit
    )
    if account is None:
        raise Conflict(f"there is already an account {name}")
    await record_action(tx, actor, "account.created", str(account.id), name=name)
    return account, token


async def find_account(tx: Tx, id_or_name: UUID | str) -> Account:
    """The account of this id, or of this name."""
    row, name = (id_or_name, None) if isinstance(id_or_name, UUID) else (None, id_or_name)
    return require_account(await tx.maybe(Account, Q.find_account, account=row, name=name), id_or_name)


async def list_accounts(tx: Tx, *, after: tuple[datetime, UUID] | None = None, limit: int = 50) -> list[Account]:
    """The oldest first; `after` is where the page before ended."""
    at, row = after or (None, None)
    return await tx.all(Account, Q.list_accounts, after=at, after_id=row, limit=limit)


async def find_account_details(tx: Tx, account: UUID) -> AccountDetails:
    return AccountDetails(
        await find_account(tx, account), await tx.one(AccountCounts, Q.count_account_contents, account=account)
    )


async def disable_account(tx: Tx, account: UUID, actor: Actor) -> Account:
    """Refuse an account's tokens from now on. Its queue and its codes end; who is paired stays so, and is told."""
    changed = await tx.maybe(Account, Q.disable_account, account=account)
    if changed is None:
        return await find_account(tx, account)
    await cancel_messages(tx, account, "disabled")
    await tx.run(Q.delete_unused_codes, account=account)
    await send_control_event(tx, ControlEventKind.DISABLED, account=account)
    await record_action(tx, actor, "account.disabled", str(account))
    return changed


async def enable_account(tx: Tx, account: UUID, actor: Actor) -> Account:
    """Let an account's tokens work again."""
    changed = await tx.maybe(Account, Q.enable_account, account=account)
    if changed is None:
        return await find_account(tx, account)
    await record_action(tx, actor, "account.enabled", str(account))
    return changed


async def rotate_relay_token(tx: Tx, account: UUID, actor: Actor, *, revoke_sessions: bool = False) -> str:
    """Give an account a new relay token, told this once; the one before is dead at once, with `sessions` theirs too."""
    token = generate_relay_token()
    if not await tx.run(Q.rotate_relay_token, account=account, token_hash=hash_relay_secret(token)):
        raise account_not_found(account)
    await tx.run(Q.delete_unused_codes, account=account)
    if revoke_sessions:
        await tx.run(Q.revoke_sessions, account=account)
        await send_control_event(tx, ControlEventKind.REVOKED, account=account, all=True)
    else:
        await send_control_event(tx, ControlEventKind.REVOKED, account=account)
    await record_action(tx, actor, "account.token_rotated", str(account), sessions=revoke_sessions)
    return token


async def delete_account(tx: Tx, account: UUID, actor: Actor) -> Account:
    """Forget an account with all its messages, codes and sessions. Its users are unpaired, and those it blocked free.

    Its conversations are held first and itself second, as whoever pairs or writes does.
    """
    await tx.run(Q.lock_conversations, account=account)
    gone = require_account(await tx.maybe(Account, Q.lock_account, account=account), account)
    await tx.run(Q.delete_messages, account=account)
    await tx.run(Q.delete_account, account=account)
    await send_control_event(tx, ControlEventKind.REVOKED, account=account, all=True)
    await record_action(tx, actor, "account.deleted", str(account), name=gone.openclaw_user_id)
    return gone


async def purge_unused_accounts(tx: Tx, batch: int) -> int:
    """Forget accounts that sessions made and nobody needs any more.

    No user is connected, no client has come for a month, nothing it was sent is kept, and nobody gave it a relay token.
    What was never approved goes as soon as what was never paired.
    """
    gone = await tx.all(
        PurgedAccount,
        Q.purge_unused_accounts,
        keep=UNUSED_ACCOUNT_RETENTION,
        shown=EXPIRED_SESSION_RETENTION,
        batch=batch,
    )
    for account in gone:
        await record_action(tx, HUB_ACTOR, "account.deleted", str(account.id), name=account.openclaw_user_id)
    return len(gone)


def generate_relay_token() -> str:
    return f"prt_{secrets.token_urlsafe(32)}"


def require_account(account: Account | None, id_or_name: UUID | str) -> Account:
    if account is None:
        raise account_not_found(id_or_name)
    return account


def account_not_found(id_or_name: UUID | str) -> NotFound:
    return NotFound(f"there is no account {id_or_name}")


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
