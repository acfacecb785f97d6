"""Pairing codes an owner makes: each connects one user, within minutes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from pabal.audit.record import did
from pabal.core.actor import Actor
from pabal.core.errors import AccountDisabled, Invalid, NotFound, TooMany
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.limits import Limit
from pabal.relay.spelling import new_code

Q = beside(__file__)

LIFE = timedelta(minutes=10)
LONGEST = timedelta(minutes=30)
MOST_LIVE = 5
MOST_METADATA = 4096
"""Bytes an owner may write on a code."""
PER_MINUTE = Limit("pairing codes a minute", 10, timedelta(minutes=1))


@dataclass(frozen=True, slots=True)
class Code:
    """A code that waits for its user."""

    code: str = field(repr=False)
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Room:
    """How many live codes an account has, and how soon one of them ends."""

    is_disabled: bool
    live: int
    next_ends_in: timedelta | None


async def generate(
    tx: Tx, account: UUID, by: Actor, *, life: timedelta = LIFE, metadata: Mapping[str, Any] | None = None
) -> Code:
    """Make a code for an account, which has at most five live ones."""
    if not timedelta() < life <= LONGEST:
        raise Invalid.one("expiresInSeconds", f"is 1 to {LONGEST // timedelta(seconds=1)}")
    if metadata is not None and len(msgspec.json.encode(metadata)) > MOST_METADATA:
        raise Invalid.one("metadata", f"is longer than {MOST_METADATA} bytes")
    if not await tx.value(Q.hold, account=account):
        raise NotFound("there is no such account")
    room = await tx.one(Room, Q.room, account=account)
    if room.is_disabled:
        raise AccountDisabled
    if room.live >= MOST_LIVE:
        raise TooMany("live pairing codes", room.next_ends_in or LIFE)
    while True:
        made = await tx.maybe(Code, Q.make, code=new_code(), account=account, life=life, metadata=metadata)
        if made is not None:
            break
    await did(tx, by, "pairing.code_made", str(account))
    return made


async def sweep(tx: Tx, batch: int) -> int:
    """Forget codes nobody used in time, and a week later those that were used."""
    return await tx.run(Q.sweep, batch=batch)
