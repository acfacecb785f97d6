"""News: what open streams must be told that is no message. Written with what happened, read by every process."""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from pabal.db.bells import Bell
from pabal.db.queries import beside
from pabal.db.tx import Tx

Q = beside(__file__)

BACK = timedelta(minutes=1)
KEEP = timedelta(minutes=10)


class Kind(StrEnum):
    PAIRED = "paired"
    UNPAIRED = "unpaired"
    DISABLED = "disabled"
    REVOKED = "revoked"


@dataclass(frozen=True, slots=True)
class News:
    """Something that happened to an account, or to one session of it."""

    id: int
    kind: str
    account_id: UUID | None
    session_id: UUID | None
    data: dict[str, Any]


async def tell(tx: Tx, kind: Kind, *, account: UUID | None, session: UUID | None = None, **data: object) -> None:
    """Let every open stream of the account know, or only those of one session."""
    await tx.run(Q.tell, kind=kind, account=account, session=session, data=data)
    tx.ring(Bell.RELAY)


async def fresh(tx: Tx, silence: timedelta) -> list[News]:
    """Everything that happened since somebody last looked, and in the minute before, the oldest first."""
    return await tx.all(News, Q.fresh, back=BACK + silence)


async def known(tx: Tx, account: UUID | None, session: UUID | None) -> set[int]:
    """The news that are no news to somebody who comes now."""
    return {*await tx.column(Q.known, back=KEEP + BACK, account=account, session=session)}


async def forget(tx: Tx, batch: int) -> int:
    return await tx.run(Q.forget, keep=KEEP, batch=batch)
