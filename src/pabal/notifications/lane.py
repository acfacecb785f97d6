"""The notification lane."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from pabal.db.bells import Bell
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.queue.lane import Can, Claimed, Lane


@dataclass(frozen=True, slots=True)
class HeldRequest:
    """A request handed to a worker under a lease."""

    id: UUID
    lease: UUID
    recipient_type: str
    recipient_id: str
    guild_id: UUID | None
    template_key: str
    payload: dict[str, Any]
    locale: str | None
    nonce: str
    event_id: UUID | None
    created_at: datetime
    attempt: int
    allowed: int


class NotificationLane(Lane[HeldRequest]):
    name = "notifications"
    bell = Bell.NOTIFICATIONS
    can = frozenset({Can.DELAY, Can.RETRY, Can.DIE, Can.PRIORITY, Can.EXPIRE})
    q = beside(__file__)
    row = HeldRequest

    async def lock(self, tx: Tx, items: Sequence[Claimed]) -> set[UUID]:
        """Let nobody else settle these before this transaction is over; those whose lease still holds."""
        return {*await tx.column(self.q.lock, **self.fences(items))}


LANE = NotificationLane()
