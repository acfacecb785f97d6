"""Accounts: bot owners, each a tenant, with a relay token that is told once."""

import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from pabal.audit.record import did
from pabal.core.actor import HUB, Actor
from pabal.core.errors import Conflict, Invalid, NotFound
from pabal.core.ids import new_id
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.relay.bearer import digest
from pabal.relay.cancel import cancel
from pabal.relay.news import Kind, tell
from pabal.relay.sessions import SHOWN

Q = beside(__file__)

MOST_NAME = 200
OF_SESSIONS = "session:"
"""What the names of accounts begin with that a session's first pairing made."""
RATE_LIMIT = 60
MOST_RATE = 2**31 - 1
UNUSED = timedelta(days=30)
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
class Counts:
    """What an account has now."""

    paired: int
    pending: int
    blocked: int
    live_codes: int
    sessions: int
    open_messages: int


@dataclass(frozen=True, slots=True)
class Swept:
    id: UUID
    openclaw_user_id: str


@dataclass(frozen=True, slots=True)
class Portrait:
    account: Account
    counts: Counts


async def create(tx: Tx, name: str, by: Actor, *, rate_limit: int = RATE_LIMIT) -> tuple[Account, str]:
    """Make an account and its relay token, which is told this once."""
    if not name.strip() or len(name) > MOST_NAME or not name.isprintable():
        raise Invalid.one("name", f"is one line of 1 to {MOST_NAME} characters")
    if name.startswith(OF_SESSIONS):
        raise Invalid.one("name", f"begins with {OF_SESSIONS}, as only accounts made by sessions do")
    if not 1 <= rate_limit <= MOST_RATE:
        raise Invalid.one("rate_limit", "is at least 1 a minute")
    token = new_token()
    account = await tx.maybe(Account, Q.create, id=new_id(), name=name, token_hash=digest(token), rate_limit=rate_limit)
    if account is None:
        raise Conflict(f"there is already an account {name}")
    await did(tx, by, "account.created", str(account.id), name=name)
    return account, token


async def find(tx: Tx, which: UUID | str) -> Account:
    """The account of this id, or of this name."""
    row, name = (which, None) if isinstance(which, UUID) else (None, which)
    return found(await tx.maybe(Account, Q.find, account=row, name=name), which)


async def every(tx: Tx, *, after: tuple[datetime, UUID] | None = None, limit: int = 50) -> list[Account]:
    """The oldest first; `after` is where the page before ended."""
    at, row = after or (None, None)
    return await tx.all(Account, Q.list, after=at, after_id=row, limit=limit)


async def show(tx: Tx, account: UUID) -> Portrait:
    return Portrait(await find(tx, account), await tx.one(Counts, Q.counts, account=account))


async def disable(tx: Tx, account: UUID, by: Actor) -> Account:
    """Refuse an account's tokens from now on. Its queue and its codes end; who is paired stays so, and is told."""
    changed = await tx.maybe(Account, Q.disable, account=account)
    if changed is None:
        return await find(tx, account)
    await cancel(tx, account, "disabled")
    await tx.run(Q.drop_codes, account=account)
    await tell(tx, Kind.DISABLED, account=account)
    await did(tx, by, "account.disabled", str(account))
    return changed


async def enable(tx: Tx, account: UUID, by: Actor) -> Account:
    """Let an account's tokens work again."""
    changed = await tx.maybe(Account, Q.enable, account=account)
    if changed is None:
        return await find(tx, account)
    await did(tx, by, "account.enabled", str(account))
    return changed


async def rotate_token(tx: Tx, account: UUID, by: Actor, *, sessions: bool = False) -> str:
    """Give an account a new relay token, told this once; the one before is dead at once, with `sessions` theirs too."""
    token = new_token()
    if not await tx.run(Q.rotate, account=account, token_hash=digest(token)):
        raise no_such(account)
    await tx.run(Q.drop_codes, account=account)
    if sessions:
        await tx.run(Q.revoke_sessions, account=account)
        await tell(tx, Kind.REVOKED, account=account, all=True)
    else:
        await tell(tx, Kind.REVOKED, account=account)
    await did(tx, by, "account.token_rotated", str(account), sessions=sessions)
    return token


async def delete(tx: Tx, account: UUID, by: Actor) -> Account:
    """Forget an account with all its messages, codes and sessions. Its users are unpaired, and those it blocked free.

    Its conversations are held first and itself second, as whoever pairs or writes does.
    """
    await tx.run(Q.hold_conversations, account=account)
    gone = found(await tx.maybe(Account, Q.hold, account=account), account)
    await tx.run(Q.drop_messages, account=account)
    await tx.run(Q.delete, account=account)
    await tell(tx, Kind.REVOKED, account=account, all=True)
    await did(tx, by, "account.deleted", str(account), name=gone.openclaw_user_id)
    return gone


async def sweep(tx: Tx, batch: int) -> int:
    """Forget accounts that sessions made and nobody needs any more.

    No user is connected, no client has come for a month, nothing it was sent is kept, and nobody gave it a relay token.
    What was never approved goes as soon as what was never paired.
    """
    gone = await tx.all(Swept, Q.sweep, keep=UNUSED, shown=SHOWN, batch=batch)
    for account in gone:
        await did(tx, HUB, "account.deleted", str(account.id), name=account.openclaw_user_id)
    return len(gone)


def new_token() -> str:
    return f"prt_{secrets.token_urlsafe(32)}"


def found(account: Account | None, which: UUID | str) -> Account:
    if account is None:
        raise no_such(which)
    return account


def no_such(which: UUID | str) -> NotFound:
    return NotFound(f"there is no account {which}")
