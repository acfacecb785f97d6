"""The notification lane."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from pabal.db.channels import Channel
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.notifications.decision.decide import Criticality, NotificationChannel
from pabal.queue.lane import Capability, ClaimedRow, Lane

CLAIM_EVERYTHING: dict[str, Any] = {
    "channels": [*NotificationChannel],
    "priorities": [each.priority for each in Criticality],
}


@dataclass(frozen=True, slots=True)
class ClaimedNotification:
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
    max_attempts: int


class NotificationLane(Lane[ClaimedNotification]):
    name = "notifications"
    channel = Channel.NOTIFICATIONS
    capabilities = frozenset(
        {Capability.DELAY, Capability.RETRY, Capability.DEAD_LETTER, Capability.PRIORITY, Capability.EXPIRE}
    )
    q = load_queries(__file__)
    row_type = ClaimedNotification

    async def claim(
        self, tx: Tx, limit: int, hold: timedelta, holder: str, **claim_filter: Any
    ) -> list[ClaimedNotification]:
        """Take due requests of all channels and priorities, or only of those that are named."""
        return await super().claim(tx, limit, hold, holder, **CLAIM_EVERYTHING | claim_filter)

    async def lock(self, tx: Tx, items: Sequence[ClaimedRow]) -> set[UUID]:
        """Let nobody else settle these before this transaction is over; those whose lease still holds."""
        return {*await tx.column(self.q.lock, **self.fences(items))}

    async def settle_done(
        self, tx: Tx, items: Sequence[ClaimedRow], responses: Sequence[dict[str, Any] | None] | None = None
    ) -> list[UUID]:
        """End them as sent, each with what its channel answered, where one did."""
        said = [None] * len(items) if responses is None else [*responses]
        return await tx.column(self.q.settle_done, **self.fences(items), answers=said)


LANE = NotificationLane()
