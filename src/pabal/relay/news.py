"""News: what open streams must be told that is no message. Written with what happened, read by every process."""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from pabal.db.bells import Channel
from pabal.db.queries import load_queries
from pabal.db.tx import Tx

Q = load_queries(__file__)

CONTROL_EVENT_LOOKBACK = timedelta(minutes=1)
CONTROL_EVENT_RETENTION = timedelta(minutes=10)


class ControlEventKind(StrEnum):
    PAIRED = "paired"
    UNPAIRED = "unpaired"
    DISABLED = "disabled"
    REVOKED = "revoked"


@dataclass(frozen=True, slots=True)
class ControlEvent:
    """Something that happened to an account, or to one session of it."""

    id: int
    kind: str
    account_id: UUID | None
    session_id: UUID | None
    data: dict[str, Any]


async def send_control_event(
    tx: Tx, kind: ControlEventKind, *, account: UUID | None, session: UUID | None = None, **data: object
) -> None:
    """Let every open stream of the account know, or only those of one session."""
    await tx.run(Q.insert_control_event, kind=kind, account=account, session=session, data=data)
    tx.notify(Channel.RELAY)


async def list_recent_control_events(tx: Tx, elapsed: timedelta) -> list[ControlEvent]:
    """Everything that happened since somebody last looked, and in the minute before, the oldest first."""
    return await tx.all(ControlEvent, Q.list_recent_control_events, back=CONTROL_EVENT_LOOKBACK + elapsed)


async def find_seen_control_event_ids(tx: Tx, account: UUID | None, session: UUID | None) -> set[int]:
    """The news that are no news to somebody who comes now."""
    return {
        *await tx.column(
            Q.find_seen_control_event_ids,
            back=CONTROL_EVENT_RETENTION + CONTROL_EVENT_LOOKBACK,
            account=account,
            session=session,
        )
    }


async def purge_control_events(tx: Tx, batch: int) -> int:
    return await tx.run(Q.purge_control_events, keep=CONTROL_EVENT_RETENTION, batch=batch)
