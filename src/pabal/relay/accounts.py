"""Accounts: bot owners. Each is a tenant with a relay token, which is shown once."""

import secrets
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, get_args
from uuid import UUID

from pabal.audit.record import record_action
from pabal.core.actor import HUB_ACTOR, Actor
from pabal.core.errors import Conflict, Invalid, NotFound
from pabal.core.ids import new_id
from pabal.db.errors import UniqueViolation
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.relay.auth import hash_relay_secret
from pabal.relay.conversations import cancel_messages
from pabal.relay.delivery.control_events import ControlEventKind, send_control_event
from pabal.relay.pairing.sessions import EXPIRED_SESSION_RETENTION

Q = load_queries(__file__)

MAX_ACCOUNT_NAME_LENGTH = 200
SESSION_ACCOUNT_PREFIX = "session:"
"""Prefix of the names of accounts that a session's first pairing created."""
DEFAULT_RATE_LIMIT = 600
"""Of an account for which neither the caller nor the settings give one."""
MAX_RATE_LIMIT = 2**31 - 1
UNUSED_ACCOUNT_RETENTION = timedelta(days=30)
"""How long an account that a session created is kept without user and client."""


AnswerMode = Literal["auto", "synchronous", "callback", "held"]
"""How users get answers: in the webhook's response (`synchronous`), through Kakao's callback, or by a button (`held`).

`auto` chooses for each message, by what Kakao offers and how fast the bot is.
"""
ANSWER_MODES: tuple[AnswerMode, ...] = get_args(AnswerMode)


@dataclass(frozen=True, slots=True)
class Account:
    """A bot owner. `openclaw_user_id` is its name; one that a session created is named after the session."""

    id: UUID
    openclaw_user_id: str
    rate_limit_per_minute: int
    answer_mode: AnswerMode
    has_token: bool
    created_at: datetime
    disabled_at: datetime | None


@dataclass(frozen=True, slots=True)
class AccountCounts:
    """Current counts of an account."""

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
    """Create an account. Returns it with its relay token, which is not stored in clear."""
    check_account_name(name)
    check_rate_limit(rate_limit)
    token = generate_relay_token()
    account = await tx.maybe(
        Account, Q.create_account, id=new_id(), name=name, token_hash=hash_relay_secret(token), rate_limit=rate_limit
    )
    if account is None:
        raise account_exists(name)
    await record_action(tx, actor, "account.created", str(account.id), name=name)
    return account, token


async def rename_account(tx: Tx, account: UUID, name: str, actor: Actor) -> Account:
    """Change an account's name, which `/status` shows to its users. A session's account has none until then."""
    check_account_name(name)
    try:
        renamed = require_account(await tx.maybe(Account, Q.rename_account, account=account, name=name), account)
    except UniqueViolation:
        raise account_exists(name) from None
    await record_action(tx, actor, "account.renamed", str(account), name=name)
    return renamed


async def set_account_rate_limit(tx: Tx, account: UUID, rate_limit: int, actor: Actor) -> Account:
    """Change how many polls and replies an account may send per minute."""
    check_rate_limit(rate_limit)
    changed = require_account(
        await tx.maybe(Account, Q.set_account_rate_limit, account=account, rate_limit=rate_limit), account
    )
    await record_action(tx, actor, "account.rate_limit_set", str(account), rate_limit=rate_limit)
    return changed


async def set_account_answer_mode(tx: Tx, account: UUID, answer_mode: AnswerMode, actor: Actor) -> Account:
    """Change how an account's users get answers, from their next message on."""
    changed = require_account(
        await tx.maybe(Account, Q.set_account_answer_mode, account=account, answer_mode=answer_mode), account
    )
    await record_action(tx, actor, "account.answer_mode_set", str(account), answer_mode=answer_mode)
    return changed


def check_account_name(name: str) -> None:
    if not name.strip() or len(name) > MAX_ACCOUNT_NAME_LENGTH or not name.isprintable():
        raise Invalid.of_field("name", f"must be one line of 1 to {MAX_ACCOUNT_NAME_LENGTH} characters")
    if name.startswith(SESSION_ACCOUNT_PREFIX):
        raise Invalid.of_field(
            "name", f"begins with {SESSION_ACCOUNT_PREFIX}, which is reserved for accounts that sessions create"
        )


def check_rate_limit(rate_limit: int) -> None:
    if not 1 <= rate_limit <= MAX_RATE_LIMIT:
        raise Invalid.of_field("rate_limit", "must be at least 1 per minute")


async def find_account(tx: Tx, id_or_name: UUID | str) -> Account:
    """Find an account by its id or name."""
    account_id, name = (id_or_name, None) if isinstance(id_or_name, UUID) else (None, id_or_name)
    return require_account(await tx.maybe(Account, Q.find_account, account=account_id, name=name), id_or_name)


async def list_accounts(tx: Tx, *, after: tuple[datetime, UUID] | None = None, limit: int = 50) -> list[Account]:
    """Accounts, oldest first. `after` is the end of the previous page."""
    after_time, after_id = after or (None, None)
    return await tx.all(Account, Q.list_accounts, after=after_time, after_id=after_id, limit=limit)


async def find_account_details(tx: Tx, account: UUID) -> AccountDetails:
    return AccountDetails(
        await find_account(tx, account), await tx.one(AccountCounts, Q.count_account_contents, account=account)
    )


async def disable_account(tx: Tx, account: UUID, actor: Actor) -> Account:
    """Refuse an account's tokens. Its open messages and unused codes end; its pairings stay."""
    disabled = await tx.maybe(Account, Q.disable_account, account=account)
    if disabled is None:
        return await find_account(tx, account)
    await cancel_messages(tx, account, "disabled")
    await tx.run(Q.delete_unused_codes, account=account)
    await send_control_event(tx, ControlEventKind.DISABLED, account=account)
    await record_action(tx, actor, "account.disabled", str(account))
    return disabled


async def enable_account(tx: Tx, account: UUID, actor: Actor) -> Account:
    """Accept an account's tokens again."""
    enabled = await tx.maybe(Account, Q.enable_account, account=account)
    if enabled is None:
        return await find_account(tx, account)
    await record_action(tx, actor, "account.enabled", str(account))
    return enabled


async def rotate_relay_token(tx: Tx, account: UUID, actor: Actor, *, revoke_sessions: bool = False) -> str:
    """Replace an account's relay token. The old one is invalid at once, with `revoke_sessions` session tokens too."""
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
    """Delete an account with its messages, codes and sessions. Its users are unpaired and its blocks are lifted."""
    deleted = await lock_account_and_conversations(tx, account)
    await tx.run(Q.delete_messages, account=account)
    await tx.run(Q.delete_account, account=account)
    await send_control_event(tx, ControlEventKind.REVOKED, account=account, all=True)
    await record_action(tx, actor, "account.deleted", str(account), name=deleted.openclaw_user_id)
    return deleted


async def purge_unused_accounts(tx: Tx, batch: int) -> int:
    """Delete unused accounts that sessions created.

    Such an account has no user, no messages and no relay token, and no client has connected for a month. An account
    that was never approved is deleted as early as a session that was never paired.
    """
    purged = await tx.all(
        PurgedAccount,
        Q.purge_unused_accounts,
        keep=UNUSED_ACCOUNT_RETENTION,
        unpaired_keep=EXPIRED_SESSION_RETENTION,
        batch=batch,
    )
    for account in purged:
        await record_action(tx, HUB_ACTOR, "account.deleted", str(account.id), name=account.openclaw_user_id)
    return len(purged)


def generate_relay_token() -> str:
    return f"prt_{secrets.token_urlsafe(32)}"


def require_account(account: Account | None, id_or_name: UUID | str) -> Account:
    if account is None:
        raise account_not_found(id_or_name)
    return account


def account_exists(name: str) -> Conflict:
    return Conflict(f"Account {name} already exists")


def account_not_found(id_or_name: UUID | str) -> NotFound:
    return NotFound(f"No such account: {id_or_name}")


MAX_COUNT_IN_LIST, MAX_COUNT_FOR_ONE = 1000, 10_000
"""Upper limits of counts in lists and for one account; counting further would only cost time."""


@dataclass(frozen=True, slots=True)
class AccountSummary:
    """An account with its current counts, each up to its limit."""

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
    """An unused pairing code."""

    code: str
    expires_in: timedelta
    metadata: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class AccountName:
    id: UUID
    openclaw_user_id: str


@dataclass(frozen=True, slots=True)
class DeletionImpact:
    """What deleting an account would delete."""

    open_messages: int
    codes: int
    sessions: int
    messages: int
    conversations: int


async def list_account_summaries(
    tx: Tx, *, name: str | None = None, before: tuple[datetime, UUID] | None = None, limit: int = 50
) -> list[AccountSummary]:
    """Accounts, newest first, optionally by the beginning of their name. `before` is the end of the previous page."""
    before_time, before_id = before or (None, None)
    return await tx.all(
        AccountSummary,
        Q.list_account_summaries,
        account=None,
        name=name,
        before=before_time,
        before_id=before_id,
        limit=limit,
        max_count=MAX_COUNT_IN_LIST,
    )


async def find_account_summary(tx: Tx, account: UUID) -> AccountSummary:
    page = {"name": None, "before": None, "before_id": None, "limit": 1, "max_count": MAX_COUNT_FOR_ONE}
    summary = await tx.maybe(AccountSummary, Q.list_account_summaries, account=account, **page)
    if summary is None:
        raise account_not_found(account)
    return summary


async def list_live_pairing_codes(tx: Tx, account: UUID) -> list[LivePairingCode]:
    """An account's unused codes, in the order in which they expire."""
    return await tx.all(LivePairingCode, Q.list_live_pairing_codes, account=account)


async def find_account_names(tx: Tx, accounts: Collection[UUID]) -> dict[UUID, str]:
    """The names of these accounts, by id."""
    rows = await tx.all(AccountName, Q.find_account_names, accounts=[*accounts])
    return {row.id: row.openclaw_user_id for row in rows}


async def measure_deletion_impact(tx: Tx, account: UUID) -> DeletionImpact:
    """Count what deleting an account would delete. The account stays locked, so the counts stay true."""
    await lock_account_and_conversations(tx, account)
    return await tx.one(DeletionImpact, Q.measure_deletion_impact, account=account)


async def lock_account_and_conversations(tx: Tx, account: UUID) -> Account:
    """Lock the conversations before the account, in the order of receiving and pairing."""
    await tx.run(Q.lock_conversations, account=account)
    return require_account(await tx.maybe(Account, Q.lock_account, account=account), account)
