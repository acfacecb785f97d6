"""What becomes of a claimed request besides the outcomes: an answer is kept, a toast arrives, a reason is told."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import UUID

from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.notifications.decision.decide import DecisionStep, DecisionSteps, SuppressReason
from pabal.notifications.dispatch.storm_guard import add_to_storm_summary
from pabal.notifications.lane import ClaimedNotification, NotificationLane
from pabal.notifications.templates.render import RenderedText
from pabal.notifications.toasts.inbox import NewToast, add_toasts
from pabal.queue.lane import Settlement
from pabal.queue.outcome import Dead, Done

Q = load_queries(__file__)


@dataclass(frozen=True, slots=True)
class NotificationSent(Done):
    """The channel took it, and said this."""

    response: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class ToastDelivered(Done):
    """It is to be put into its person's inbox; that happens with the settle, or not at all."""

    rendered: RenderedText
    locale: str


@dataclass(frozen=True, slots=True)
class NotificationSuppressed(Dead):
    """It is not to be sent, and nothing went wrong: `why` is one of the reasons, `steps` how it was found."""

    steps: DecisionSteps = ()

    @classmethod
    def for_reason(cls, reason: SuppressReason, steps: DecisionSteps) -> "NotificationSuppressed":
        return cls(reason.value, steps=steps)


class NotificationDispatchLane(NotificationLane):
    """The notification lane as it is dispatched."""

    async def settle(self, tx: Tx, settlements: Sequence[Settlement]) -> set[UUID]:
        """Settle what only this lane knows by its own statements and the rest by the engine's, together."""
        taken = [verdict for verdict in settlements if isinstance(verdict.outcome, NotificationSent | ToastDelivered)]
        suppressed = [verdict for verdict in settlements if isinstance(verdict.outcome, NotificationSuppressed)]
        known = {id(verdict) for verdict in (*taken, *suppressed)}
        others = [verdict for verdict in settlements if id(verdict) not in known]
        async with tx.atomic():
            held = await self.lock(tx, [verdict.item for verdict in settlements])
            settled = await super().settle(tx, others) if others else set[UUID]()
            counted = len(settled)
            if suppressed:
                settled |= await self._suppress(tx, suppressed)
            if taken := [verdict for verdict in taken if verdict.item.id in held]:
                settled |= await self._mark_sent(tx, taken)
            tx.count_outcomes(self.name, "done", len(settled) - counted)
        return settled

    async def _mark_sent(self, tx: Tx, settlements: Sequence[Settlement]) -> set[UUID]:
        """End what its channel took. The lock is ours, so a toast arrives only if its request ends with it."""
        if landing := [verdict for verdict in settlements if isinstance(verdict.outcome, ToastDelivered)]:
            await add_toasts(tx, [settlement_toast(verdict) for verdict in landing])
        answers = [
            verdict.outcome.response if isinstance(verdict.outcome, NotificationSent) else None
            for verdict in settlements
        ]
        return {*await self.settle_done(tx, [verdict.item for verdict in settlements], answers)}

    async def _suppress(self, tx: Tx, settlements: Sequence[Settlement]) -> set[UUID]:
        said = {verdict.item.id: cast("NotificationSuppressed", verdict.outcome) for verdict in settlements}
        items = [cast("ClaimedNotification", verdict.item) for verdict in settlements]
        settled: set[UUID] = {
            *await tx.column(
                Q.settle_suppressed,
                **self.fences(items),
                reasons=[said[item.id].error for item in items],
                steps=[" ".join(said[item.id].steps) for item in items],
            )
        }
        storm = [
            each for each in items if each.id in settled and DecisionStep.TOO_MANY_EMERGENCIES in said[each.id].steps
        ]
        if storm:
            await add_to_storm_summary(tx, storm)
        return settled


def settlement_toast(settlement: Settlement) -> NewToast:
    toasted = cast("ToastDelivered", settlement.outcome)
    return NewToast(cast("ClaimedNotification", settlement.item), toasted.rendered, toasted.locale)
