"""The event lane for work that is done in the transaction that settles the event: both happen, or neither."""

from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

from pabal.core.errors import Unavailable
from pabal.core.log import get_logger
from pabal.db.errors import RetryableError
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.events.lane import ClaimedEvent, EventLane
from pabal.queue.lane import Settlement
from pabal.queue.outcome import DONE, Done, Outcome
from pabal.queue.worker import retry_from_exception

Q = load_queries(__file__)
log = get_logger()

TransactionalWork = Callable[[Tx, Sequence[ClaimedEvent]], Awaitable[Sequence[Outcome]]]
"""Does what is to be done for the first of these events, one at least, and says what becomes of each of those."""


class TransactionalLane(EventLane):
    """The event lane; what its worker calls done is done here, for those whose lease still holds.

    It is done in as many transactions as the work takes it for. Where it fails, each event has one of its own, so that
    no event is in the way of any other.
    """

    def __init__(self, work: TransactionalWork) -> None:
        self._work = work

    async def settle(self, tx: Tx, settlements: Sequence[Settlement]) -> set[UUID]:
        ready = [v.item for v in settlements if isinstance(v.outcome, Done) and isinstance(v.item, ClaimedEvent)]
        known = {event.id for event in ready}
        others = [verdict for verdict in settlements if verdict.item.id not in known]
        settled = await super().settle(tx, others) if others else set[UUID]()
        while ready:
            try:
                ended, ready = await self._settle_batch(tx, ready)
            except (RetryableError, Unavailable):
                raise
            except Exception as error:  # noqa: BLE001 whatever it is, it is one event's
                ended, ready = await self._settle_individually(tx, ready, error), []
            settled |= ended
        return settled

    async def _settle_batch(self, tx: Tx, events: Sequence[ClaimedEvent]) -> tuple[set[UUID], list[ClaimedEvent]]:
        """Do the work for as many as it takes at once: those that are settled, and those that are left."""
        async with tx.atomic():
            held = {*await tx.column(Q.lock_leased_events, **self.fences(events))}
            mine = [event for event in events if event.id in held]
            outcomes = await self._work(tx, mine) if mine else ()
            settled = await super().settle(tx, [Settlement(*each) for each in zip(mine, outcomes, strict=False)])
        return settled, mine[len(outcomes) :]

    async def _settle_individually(self, tx: Tx, events: Sequence[ClaimedEvent], error: Exception) -> set[UUID]:
        """Do it for each alone; the one that it fails for has failed, and says why."""
        if len(events) > 1:
            return {row for event in events for row in await self.settle(tx, [Settlement(event, DONE)])}
        log.error("work failed", row=str(events[0].id), error=f"{type(error).__name__}: {error}")
        return await super().settle(tx, [Settlement(events[0], retry_from_exception(error))])


async def noop_handler(_event: ClaimedEvent) -> Outcome:
    """The handler of such a lane: there is nothing to do before the settling."""
    return DONE
