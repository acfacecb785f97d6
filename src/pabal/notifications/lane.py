"""The notification lane."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from pabal.db.bells import Bell
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.notifications.plan import Channel, Criticality
from pabal.queue.lane import Can, Claimed, Lane

EVERYTHING: dict[str, Any] = {
    "channels": [*Channel],
    "priorities": [each.priority for each in Criticality],
}


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
    priority: int
    created_at: datetime
    attempt: int
    allowed: int


class NotificationLane(Lane[HeldRequest]):
    name = "notifications"
    bell = Bell.NOTIFICATIONS
    can = frozenset({Can.DELAY, Can.RETRY, Can.DIE, Can.PRIORITY, Can.EXPIRE})
    q = beside(__file__)
    row = HeldRequest

    async def claim(self, tx: Tx, limit: int, hold: timedelta, holder: str, **whom: Any) -> list[HeldRequest]:
        """Take due requests of all channels and priorities, or only of those that are named."""
        return await super().claim(tx, limit, hold, holder, **EVERYTHING | whom)

    async def lock(self, tx: Tx, items: Sequence[Claimed]) -> set[UUID]:
        """Let nobody else settle these before this transaction is over; those whose lease still holds."""
        return {*await tx.column(self.q.lock, **self.fences(items))}

    async def settle_done(
        self, tx: Tx, items: Sequence[Claimed], answers: Sequence[dict[str, Any] | None] | None = None
    ) -> list[UUID]:
        """End them as sent, each with what its channel answered, where one did."""
        said = [None] * len(items) if answers is None else [*answers]
        return await tx.column(self.q.settle_done, **self.fences(items), answers=said)


LANE = NotificationLane()
