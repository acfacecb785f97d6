"""The event lane for work that is done in the transaction that settles the event: both happen, or neither."""

from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

from pabal.core.errors import Unavailable
from pabal.core.log import get_logger
from pabal.db.faults import Contended
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.events.lane import EventLane, HeldEvent
from pabal.queue.lane import Verdict
from pabal.queue.outcome import DONE, Done, Outcome
from pabal.queue.worker import failed

Q = beside(__file__)
log = get_logger()

Work = Callable[[Tx, Sequence[HeldEvent]], Awaitable[Sequence[Outcome]]]
"""Does what is to be done for the first of these events, one at least, and says what becomes of each of those."""


class Together(EventLane):
    """The event lane; what its worker calls done is done here, for those whose lease still holds.

    It is done in as many transactions as the work takes it for. Where it fails, each event has one of its own, so that
    no event is in the way of any other.
    """

    def __init__(self, work: Work) -> None:
        self._work = work

    async def settle(self, tx: Tx, verdicts: Sequence[Verdict]) -> set[UUID]:
        ready = [v.item for v in verdicts if isinstance(v.outcome, Done) and isinstance(v.item, HeldEvent)]
        known = {event.id for event in ready}
        others = [verdict for verdict in verdicts if verdict.item.id not in known]
        settled = await super().settle(tx, others) if others else set[UUID]()
        while ready:
            try:
                ended, ready = await self._some(tx, ready)
            except (Contended, Unavailable):
                raise
            except Exception as error:  # noqa: BLE001 whatever it is, it is one event's
                ended, ready = await self._apart(tx, ready, error), []
            settled |= ended
        return settled

    async def _some(self, tx: Tx, events: Sequence[HeldEvent]) -> tuple[set[UUID], list[HeldEvent]]:
        """Do the work for as many as it takes at once: those that are settled, and those that are left."""
        async with tx.together():
            held = {*await tx.column(Q.hold, **self.fences(events))}
            mine = [event for event in events if event.id in held]
            outcomes = await self._work(tx, mine) if mine else ()
            settled = await super().settle(tx, [Verdict(*each) for each in zip(mine, outcomes, strict=False)])
        return settled, mine[len(outcomes) :]

    async def _apart(self, tx: Tx, events: Sequence[HeldEvent], error: Exception) -> set[UUID]:
        """Do it for each alone; the one that it fails for has failed, and says why."""
        if len(events) > 1:
            return {row for event in events for row in await self.settle(tx, [Verdict(event, DONE)])}
        log.error("work failed", row=str(events[0].id), why=f"{type(error).__name__}: {error}")
        return await super().settle(tx, [Verdict(events[0], failed(error))])


async def at_settling(_event: HeldEvent) -> Outcome:
    """The handler of such a lane: there is nothing to do before the settling."""
    return DONE
