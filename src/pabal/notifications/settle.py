"""What becomes of a claimed request besides the outcomes: an answer is kept, a toast arrives, a reason is told."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import UUID

from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.notifications.lane import HeldRequest, NotificationLane
from pabal.notifications.plan import Reason, Step, Steps
from pabal.notifications.render import Rendered
from pabal.notifications.storm import summarise
from pabal.notifications.toasts import Arrival, arrive_all
from pabal.queue.lane import Verdict
from pabal.queue.outcome import Dead, Done

Q = beside(__file__)


@dataclass(frozen=True, slots=True)
class Sent(Done):
    """The channel took it, and said this."""

    answer: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Toasted(Done):
    """It is to be put into its person's inbox; that happens with the settle, or not at all."""

    rendered: Rendered
    locale: str


@dataclass(frozen=True, slots=True)
class Suppressed(Dead):
    """It is not to be sent, and nothing went wrong: `why` is one of the reasons, `steps` how it was found."""

    steps: Steps = ()

    @classmethod
    def because(cls, reason: Reason, steps: Steps) -> "Suppressed":
        return cls(reason.value, steps=steps)


class Dispatches(NotificationLane):
    """The notification lane as it is dispatched."""

    async def settle(self, tx: Tx, verdicts: Sequence[Verdict]) -> set[UUID]:
        """Settle what only this lane knows by its own statements and the rest by the engine's, together."""
        taken = [verdict for verdict in verdicts if isinstance(verdict.outcome, Sent | Toasted)]
        suppressed = [verdict for verdict in verdicts if isinstance(verdict.outcome, Suppressed)]
        known = {id(verdict) for verdict in (*taken, *suppressed)}
        others = [verdict for verdict in verdicts if id(verdict) not in known]
        async with tx.together():
            held = await self.lock(tx, [verdict.item for verdict in verdicts])
            settled = await super().settle(tx, others) if others else set[UUID]()
            counted = len(settled)
            if suppressed:
                settled |= await self._suppress(tx, suppressed)
            if taken := [verdict for verdict in taken if verdict.item.id in held]:
                settled |= await self._mark_sent(tx, taken)
            tx.count(self.name, "done", len(settled) - counted)
        return settled

    async def _mark_sent(self, tx: Tx, verdicts: Sequence[Verdict]) -> set[UUID]:
        """End what its channel took. The lock is ours, so a toast arrives only if its request ends with it."""
        if landing := [verdict for verdict in verdicts if isinstance(verdict.outcome, Toasted)]:
            await arrive_all(tx, [arrival(verdict) for verdict in landing])
        answers = [verdict.outcome.answer if isinstance(verdict.outcome, Sent) else None for verdict in verdicts]
        return {*await self.settle_done(tx, [verdict.item for verdict in verdicts], answers)}

    async def _suppress(self, tx: Tx, verdicts: Sequence[Verdict]) -> set[UUID]:
        said = {verdict.item.id: cast("Suppressed", verdict.outcome) for verdict in verdicts}
        items = [cast("HeldRequest", verdict.item) for verdict in verdicts]
        settled: set[UUID] = {
            *await tx.column(
                Q.suppress,
                **self.fences(items),
                reasons=[said[item.id].why for item in items],
                steps=[" ".join(said[item.id].steps) for item in items],
            )
        }
        storm = [each for each in items if each.id in settled and Step.TOO_MANY_EMERGENCIES in said[each.id].steps]
        if storm:
            await summarise(tx, storm)
        return settled


def arrival(verdict: Verdict) -> Arrival:
    toasted = cast("Toasted", verdict.outcome)
    return Arrival(cast("HeldRequest", verdict.item), toasted.rendered, toasted.locale)
