"""Control events: changes to an account or session that its open streams must learn, in every process."""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from pabal.db.doorbell.channels import Channel
from pabal.db.queries import load_queries
from pabal.db.tx import Tx

Q = load_queries(__file__)

CONTROL_EVENT_LOOKBACK = timedelta(minutes=1)
"""How far each read goes back beyond the previous one: longer than a transaction may take to commit."""
CONTROL_EVENT_RETENTION = timedelta(minutes=10)


class ControlEventKind(StrEnum):
    PAIRED = "paired"
    UNPAIRED = "unpaired"
    DISABLED = "disabled"
    REVOKED = "revoked"
    PARKED = "parked"
    ACTIVATED = "activated"


@dataclass(frozen=True, slots=True)
class ControlEvent:
    """A change to an account, or to one session of it. `kind` may be newer than this process knows."""

    id: int
    kind: ControlEventKind | str
    account_id: UUID | None
    session_id: UUID | None
    data: dict[str, Any]


async def send_control_event(
    tx: Tx, kind: ControlEventKind, *, account: UUID | None, session: UUID | None = None, **data: object
) -> None:
    """Notify the open streams of an account and of a session, in every process."""
    await tx.run(Q.insert_control_event, kind=kind, account=account, session=session, data=data)
    tx.notify(Channel.RELAY)


async def list_recent_control_events(tx: Tx, elapsed: timedelta) -> list[ControlEvent]:
    """Control events since the previous read, `elapsed` ago, and some before it; oldest first."""
    return await tx.all(ControlEvent, Q.list_recent_control_events, window=CONTROL_EVENT_LOOKBACK + elapsed)


async def purge_control_events(tx: Tx, batch: int) -> int:
    return await tx.run(Q.purge_control_events, keep=CONTROL_EVENT_RETENTION, batch=batch)
