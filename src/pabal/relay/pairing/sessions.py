"""Sessions: a client's token, and the code by which its first user connects."""

import re
import secrets
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

from pabal.core.errors import AccountDisabled, NotFound
from pabal.core.ids import new_id
from pabal.db.doorbell.channels import Channel
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.limits import RateLimit
from pabal.relay.auth import hash_relay_secret
from pabal.relay.pairing.codes import random_pairing_code

Q = load_queries(__file__)

SESSION_CODE_LIFETIME = timedelta(minutes=5)
EXPIRED_SESSION_RETENTION = timedelta(hours=1)
"""How long the status of an unpaired session is available after its code expired."""
NEW_SESSION_LIMIT = RateLimit("new sessions from this address", 10, timedelta(minutes=5))
SESSION_TOKEN_BYTES = 32
SESSION_TOKEN_PATTERN = re.compile(r"[0-9a-f]{64}")

RelaySessionState = Literal["pending_pairing", "paired", "expired", "disconnected"]


@dataclass(frozen=True, slots=True)
class NewRelaySession:
    """A new session with its token and code. The token is not stored in clear."""

    id: UUID
    token: str = field(repr=False)
    code: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class RelaySessionStatus:
    """The state of a session. `user_key` is the user who redeemed its code, while connected."""

    state: RelaySessionState
    account_id: UUID | None
    paired_at: datetime | None
    user_key: str | None
    is_disabled: bool


async def create_relay_session(tx: Tx, client_address: str | None) -> NewRelaySession:
    """Create a session with a code that is valid for five minutes. A code in use is drawn again."""
    while True:
        session = NewRelaySession(new_id(), secrets.token_hex(SESSION_TOKEN_BYTES), random_pairing_code())
        if await tx.run(
            Q.create_relay_session,
            id=session.id,
            token_hash=hash_relay_secret(session.token),
            code=session.code,
            client_address=client_address,
            life=SESSION_CODE_LIFETIME,
        ):
            return session


async def find_relay_session_status(tx: Tx, token: str) -> RelaySessionStatus:
    """The status of a token's session; raises NotFound for an unknown or revoked token."""
    status = (
        await tx.maybe(RelaySessionStatus, Q.find_relay_session_status, token_hash=hash_relay_secret(token))
        if SESSION_TOKEN_PATTERN.fullmatch(token)
        else None
    )
    if status is None:
        raise NotFound("No such session")
    if status.is_disabled:
        raise AccountDisabled
    return status


async def sync_sessions_with_pairings(tx: Tx, accounts: Collection[UUID]) -> None:
    """Update sessions from their accounts' conversations: paired while one is, disconnected after the last."""
    await lock_relay_sessions(tx, accounts)
    await tx.run(Q.sync_sessions_with_pairings, accounts=[*accounts])


async def lock_relay_sessions(tx: Tx, accounts: Collection[UUID]) -> None:
    """Lock the sessions of these accounts: of two users who leave at once, each would see the other still paired.

    Lock all accounts of a transaction in one call, so that the lock order is the same everywhere.
    """
    await tx.run(Q.lock_relay_sessions, accounts=[*accounts])


async def revoke_abandoned_sessions(tx: Tx, accounts: Collection[UUID] | None = None) -> None:
    """Revoke sessions whose first pairing was not approved, of these accounts or of all.

    Their code is used, so no user can come any more. Their open streams end.
    """
    if accounts is not None:
        await lock_relay_sessions(tx, accounts)
    if await tx.run(Q.revoke_abandoned_sessions, accounts=None if accounts is None else [*accounts]):
        tx.notify(Channel.RELAY)


async def purge_relay_sessions(tx: Tx, batch: int) -> int:
    """Delete unpaired sessions an hour after their code expired."""
    return await tx.run(Q.purge_relay_sessions, keep=EXPIRED_SESSION_RETENTION, batch=batch)
