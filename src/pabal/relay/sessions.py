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
from pabal.db.bells import Bell
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.limits import Limit
from pabal.relay.bearer import digest
from pabal.relay.spelling import new_code

Q = beside(__file__)

LIFE = timedelta(minutes=5)
SHOWN = timedelta(hours=1)
"""How long a session nobody paired can still be asked about."""
PER_ADDRESS = Limit("new sessions from this address", 10, timedelta(minutes=5))
TOKEN_BYTES = 32
TOKEN = re.compile(r"[0-9a-f]{64}")

State = Literal["pending_pairing", "paired", "expired", "disconnected"]


@dataclass(frozen=True, slots=True)
class NewSession:
    """A session just made, with its token and its code, told this once."""

    id: UUID
    token: str = field(repr=False)
    code: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Standing:
    """How a session stands. `user` is who redeemed its code, while they are connected."""

    state: State
    account: UUID | None
    paired_at: datetime | None
    user: str | None
    is_disabled: bool


async def create(tx: Tx, client_address: str | None) -> NewSession:
    """Make a session with a code that is good for five minutes. A code somebody else has is drawn again."""
    while True:
        made = NewSession(new_id(), secrets.token_hex(TOKEN_BYTES), new_code())
        if await tx.run(
            Q.create,
            id=made.id,
            token_hash=digest(made.token),
            code=made.code,
            client_address=client_address,
            life=LIFE,
        ):
            return made


async def status(tx: Tx, token: str) -> Standing:
    """How the session of this token stands; NotFound when no session has it, or no longer."""
    found = await tx.maybe(Standing, Q.status, token_hash=digest(token)) if TOKEN.fullmatch(token) else None
    if found is None:
        raise NotFound("there is no such session")
    if found.is_disabled:
        raise AccountDisabled
    return found


async def follow(tx: Tx, accounts: Collection[UUID]) -> None:
    """Let sessions say what their accounts' conversations do: paired while one is, disconnected when none is left."""
    await hold(tx, accounts)
    await tx.run(Q.follow, accounts=[*accounts])


async def hold(tx: Tx, accounts: Collection[UUID]) -> None:
    """Come one after the other: two who leave an account at once would each see the other still there.

    Whoever touches two accounts holds both first, so that nobody holds them the other way round.
    """
    await tx.run(Q.hold, accounts=[*accounts])


async def give_up(tx: Tx, accounts: Collection[UUID] | None = None) -> None:
    """End sessions that wait in vain for their first user, of these accounts or of all.

    With the code the token is spent. Their open streams are told at once.
    """
    if accounts is not None:
        await hold(tx, accounts)
    if await tx.run(Q.give_up, accounts=None if accounts is None else [*accounts]):
        tx.ring(Bell.RELAY)


async def sweep(tx: Tx, batch: int) -> int:
    """Forget sessions nobody paired, an hour after their codes ended."""
    return await tx.run(Q.sweep, shown=SHOWN, batch=batch)
