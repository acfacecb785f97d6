"""The notification lane: claim and settle the rows of `notification.requests`."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from pabal.db.doorbell.channels import Channel
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.notifications.decision.decide import Criticality, NotificationChannel
from pabal.notifications.states import Priority, RecipientType
from pabal.queue.lane import Capability, ClaimedRow, Lane


@dataclass(frozen=True, slots=True)
class NotificationClaimFilter:
    """Due notifications of these channels and priorities."""

    channels: Sequence[NotificationChannel]
    priorities: Sequence[int]


ANY_NOTIFICATION = NotificationClaimFilter(
    [*NotificationChannel], [criticality.priority for criticality in Criticality]
)


@dataclass(frozen=True, slots=True)
class ClaimedNotification:
    """A notification that a worker holds under a lease."""

    id: UUID
    lease: UUID
    recipient_type: RecipientType
    recipient_id: str
    guild_id: UUID | None
    template_key: str
    payload: dict[str, Any]
    locale: str | None
    nonce: str
    event_id: UUID | None
    priority: Priority
    created_at: datetime
    attempt: int
    max_attempts: int
    source_service: str | None


class NotificationLane(Lane[ClaimedNotification, NotificationClaimFilter]):
    name = "notifications"
    channel = Channel.NOTIFICATIONS
    capabilities = frozenset(
        {Capability.DELAY, Capability.RETRY, Capability.DEAD_LETTER, Capability.PRIORITY, Capability.EXPIRE}
    )
    q = load_queries(__file__)
    row_type = ClaimedNotification

    async def claim(
        self,
        tx: Tx,
        limit: int,
        hold: timedelta,
        holder: str,
        claim_filter: NotificationClaimFilter = ANY_NOTIFICATION,
        /,
    ) -> list[ClaimedNotification]:
        return await self.claim_rows(
            tx, limit, hold, holder, channels=claim_filter.channels, priorities=claim_filter.priorities
        )

    async def lock(self, tx: Tx, items: Sequence[ClaimedRow]) -> set[UUID]:
        """Lock rows until the transaction ends. Return the ids whose lease still holds."""
        return {*await tx.column(self.q.lock, **self.fences(items))}

    async def settle_done(
        self, tx: Tx, items: Sequence[ClaimedRow], responses: Sequence[dict[str, Any] | None] | None = None
    ) -> list[UUID]:
        """Mark them as sent, each with its channel's response if there is one."""
        answers = [None] * len(items) if responses is None else [*responses]
        return await tx.column(self.q.settle_done, **self.fences(items), answers=answers)


LANE = NotificationLane()
