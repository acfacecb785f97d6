"""The dispatcher's lane: claims notifications and settles what their channels answered, with toasts and reasons."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, assert_never, cast
from uuid import UUID

from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.notifications.decision.decide import DecisionStep
from pabal.notifications.dispatch.outcome import (
    DispatchOutcome,
    NotificationSent,
    NotificationSuppressed,
    ToastRendered,
)
from pabal.notifications.dispatch.storm_guard import add_to_storm_summary
from pabal.notifications.lane import LANE, ClaimedNotification, NotificationClaimFilter, NotificationLane
from pabal.notifications.toasts.inbox import NewToast, add_toasts
from pabal.queue.lane import ClaimedRow, Lane, Settlement
from pabal.queue.outcome import Dead, Retry, Snooze

Q = load_queries(__file__)


@dataclass(slots=True)
class SettleBatch:
    """Settlements sorted by the statement that writes them."""

    sent: list[tuple[ClaimedRow, dict[str, Any] | None]] = field(
        default_factory=list[tuple[ClaimedRow, dict[str, Any] | None]]
    )
    toasts: list[NewToast] = field(default_factory=list[NewToast])
    suppressed: list[tuple[ClaimedNotification, NotificationSuppressed]] = field(
        default_factory=list[tuple[ClaimedNotification, NotificationSuppressed]]
    )
    engine: list[Settlement] = field(default_factory=list[Settlement])
    """Outcomes of the engine, settled as in every lane."""

    def add(self, settlement: Settlement[DispatchOutcome]) -> None:
        notification = cast("ClaimedNotification", settlement.item)
        match settlement.outcome:
            case NotificationSent(response):
                self.sent.append((notification, response))
            case ToastRendered(rendered, locale):
                self.toasts.append(NewToast(notification, rendered, locale))
                self.sent.append((notification, None))
            case NotificationSuppressed() as suppressed:
                self.suppressed.append((notification, suppressed))
            case Retry() | Dead() | Snooze() as outcome:
                self.engine.append(Settlement(notification, outcome))
            case _:
                assert_never(settlement.outcome)


class NotificationDispatchLane(Lane[ClaimedNotification, NotificationClaimFilter, DispatchOutcome]):
    """The notification lane with the dispatcher's outcomes."""

    name = NotificationLane.name
    channel = NotificationLane.channel
    capabilities = NotificationLane.capabilities
    q = NotificationLane.q
    row_type = NotificationLane.row_type
    outcome_types = (NotificationSent, ToastRendered, NotificationSuppressed, Retry, Dead, Snooze)

    async def claim(
        self, tx: Tx, limit: int, hold: timedelta, holder: str, claim_filter: NotificationClaimFilter, /
    ) -> list[ClaimedNotification]:
        return await LANE.claim(tx, limit, hold, holder, claim_filter)

    def settles_atomically(self, settlements: Sequence[Settlement[object]]) -> bool:  # noqa: ARG002 always
        return True

    async def settle(self, tx: Tx, settlements: Sequence[Settlement[DispatchOutcome]]) -> set[UUID]:
        """Settle all in one transaction; return the ids whose lease still held.

        The rows are locked first, so a toast is inserted only if its notification is settled with it.
        """
        async with tx.atomic():
            held = await LANE.lock(tx, [settlement.item for settlement in settlements])
            batch = SettleBatch()
            for settlement in settlements:
                if settlement.item.id in held:
                    batch.add(settlement)
            settled = await LANE.settle(tx, batch.engine) if batch.engine else set[UUID]()
            ended = await self._suppress(tx, batch.suppressed) | await self._mark_sent(tx, batch)
            tx.count_outcomes(self.name, "done", len(ended))
        return settled | ended

    async def _mark_sent(self, tx: Tx, batch: SettleBatch) -> set[UUID]:
        if not batch.sent:
            return set()
        if batch.toasts:
            await add_toasts(tx, batch.toasts)
        items = [item for item, _ in batch.sent]
        return {*await LANE.settle_done(tx, items, [response for _, response in batch.sent])}

    async def _suppress(
        self, tx: Tx, suppressed: Sequence[tuple[ClaimedNotification, NotificationSuppressed]]
    ) -> set[UUID]:
        if not suppressed:
            return set()
        settled: set[UUID] = {
            *await tx.column(
                Q.settle_suppressed,
                **self.fences([notification for notification, _ in suppressed]),
                reasons=[outcome.reason for _, outcome in suppressed],
                steps=[" ".join(outcome.steps) for _, outcome in suppressed],
            )
        }
        in_storm = [
            notification
            for notification, outcome in suppressed
            if notification.id in settled and DecisionStep.TOO_MANY_EMERGENCIES in outcome.steps
        ]
        if in_storm:
            await add_to_storm_summary(tx, in_storm)
        return settled
