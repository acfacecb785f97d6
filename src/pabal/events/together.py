"""The event lane for work that is done in the transaction that settles the event: both happen, or neither."""

from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.events.lane import EventLane, HeldEvent
from pabal.queue.lane import Verdict
from pabal.queue.outcome import DONE, Done, Outcome

Q = beside(__file__)

Work = Callable[[Tx, Sequence[HeldEvent]], Awaitable[Sequence[Outcome]]]
"""Does what is to be done for these events, and says what becomes of each."""


class Together(EventLane):
    """The event lane; what its worker calls done is done here, for those whose lease still holds."""

    def __init__(self, work: Work) -> None:
        self._work = work

    async def settle(self, tx: Tx, verdicts: Sequence[Verdict]) -> set[UUID]:
        ready = [v.item for v in verdicts if isinstance(v.outcome, Done) and isinstance(v.item, HeldEvent)]
        async with tx.together():
            held = {*await tx.column(Q.hold, **self.fences(ready))} if ready else set[UUID]()
            events = [event for event in ready if event.id in held]
            became = dict(zip((event.id for event in events), await self._work(tx, events), strict=True))
            return await super().settle(tx, [Verdict(v.item, became.get(v.item.id, v.outcome)) for v in verdicts])


async def at_settling(_event: HeldEvent) -> Outcome:
    """The handler of such a lane: there is nothing to do before the settling."""
    return DONE
