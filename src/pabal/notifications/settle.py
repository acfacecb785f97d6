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
        sent = [verdict for verdict in verdicts if isinstance(verdict.outcome, Sent)]
        toasted = [verdict for verdict in verdicts if isinstance(verdict.outcome, Toasted)]
        suppressed = [verdict for verdict in verdicts if isinstance(verdict.outcome, Suppressed)]
        known = {id(verdict) for verdict in (*sent, *toasted, *suppressed)}
        others = [verdict for verdict in verdicts if id(verdict) not in known]
        async with tx.together():
            held = await self.lock(tx, [verdict.item for verdict in verdicts])
            settled = await super().settle(tx, others) if others else set[UUID]()
            if suppressed:
                settled |= await self._suppress(tx, suppressed)
            if sent:
                settled |= await self._keep_answers(tx, sent)
            if landing := [verdict for verdict in toasted if verdict.item.id in held]:
                await arrive_all(tx, [arrival(verdict) for verdict in landing])
                settled |= {*await self.settle_done(tx, [cast("HeldRequest", verdict.item) for verdict in landing])}
        return settled

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

    async def _keep_answers(self, tx: Tx, verdicts: Sequence[Verdict]) -> set[UUID]:
        said = [cast("Sent", verdict.outcome).answer for verdict in verdicts]
        return {
            *await tx.column(Q.mark_sent, **self.fences([verdict.item for verdict in verdicts]), answers=said),
        }


def arrival(verdict: Verdict) -> Arrival:
    toasted = cast("Toasted", verdict.outcome)
    return Arrival(cast("HeldRequest", verdict.item), toasted.rendered, toasted.locale)
