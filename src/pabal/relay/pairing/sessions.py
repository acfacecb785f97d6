"""Sessions: a client's token, and the code that waits for a user."""

import re
import secrets
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

from pabal.core.errors import AccountDisabled, NotFound
from pabal.core.ids import new_id
from pabal.db.channels import Channel
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.limits import RateLimit
from pabal.relay.auth import hash_relay_secret
from pabal.relay.pairing.codes import random_pairing_code

Q = load_queries(__file__)

SESSION_CODE_LIFETIME = timedelta(minutes=5)
EXPIRED_SESSION_RETENTION = timedelta(hours=1)
"""How long a session nobody paired can still be asked about."""
NEW_SESSION_LIMIT = RateLimit("new sessions from this address", 10, timedelta(minutes=5))
SESSION_TOKEN_BYTES = 32
SESSION_TOKEN_PATTERN = re.compile(r"[0-9a-f]{64}")

RelaySessionState = Literal["pending_pairing", "paired", "expired", "disconnected"]


@dataclass(frozen=True, slots=True)
class NewRelaySession:
    """A session just made, with its token and its code, told this once."""

    id: UUID
    token: str = field(repr=False)
    code: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class RelaySessionStatus:
    """How a session stands. `user` is who redeemed its code, while they are connected."""

    state: RelaySessionState
    account_id: UUID | None
    paired_at: datetime | None
    user_key: str | None
    is_disabled: bool


async def create_relay_session(tx: Tx, client_address: str | None) -> NewRelaySession:
    """Make a session with a code that is good for five minutes. A code somebody else has is drawn again."""
    while True:
        made = NewRelaySession(new_id(), secrets.token_hex(SESSION_TOKEN_BYTES), random_pairing_code())
        if await tx.run(
            Q.create_relay_session,
            id=made.id,
            token_hash=hash_relay_secret(made.token),
            code=made.code,
            client_address=client_address,
            life=SESSION_CODE_LIFETIME,
        ):
            return made


async def find_relay_session_status(tx: Tx, token: str) -> RelaySessionStatus:
    """How the session of this token stands; NotFound when no session has it, or no longer."""
    found = (
        await tx.maybe(RelaySessionStatus, Q.find_relay_session_status, token_hash=hash_relay_secret(token))
        if SESSION_TOKEN_PATTERN.fullmatch(token)
        else None
    )
    if found is None:
        raise NotFound("there is no such session")
    if found.is_disabled:
        raise AccountDisabled
    return found


async def sync_sessions_with_pairings(tx: Tx, accounts: Collection[UUID]) -> None:
    """Let sessions say what their accounts' conversations do: paired while one is, disconnected when none is left."""
    await lock_relay_sessions(tx, accounts)
    await tx.run(Q.sync_sessions_with_pairings, accounts=[*accounts])


async def lock_relay_sessions(tx: Tx, accounts: Collection[UUID]) -> None:
    """Come one after the other: two who leave an account at once would each see the other still there.

    Whoever touches two accounts holds both first, so that nobody holds them the other way round.
    """
    await tx.run(Q.lock_relay_sessions, accounts=[*accounts])


async def revoke_abandoned_sessions(tx: Tx, accounts: Collection[UUID] | None = None) -> None:
    """End sessions that wait in vain for their first user, of these accounts or of all.

    With the code the token is spent. Their open streams are told at once.
    """
    if accounts is not None:
        await lock_relay_sessions(tx, accounts)
    if await tx.run(Q.revoke_abandoned_sessions, accounts=None if accounts is None else [*accounts]):
        tx.notify(Channel.RELAY)


async def purge_relay_sessions(tx: Tx, batch: int) -> int:
    """Forget sessions nobody paired, an hour after their codes ended."""
    return await tx.run(Q.purge_relay_sessions, shown=EXPIRED_SESSION_RETENTION, batch=batch)
