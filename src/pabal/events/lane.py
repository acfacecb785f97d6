"""The event lane."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from pabal.db.bells import Bell
from pabal.db.faults import Contended, Duplicate
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.queue.lane import Can, Lane

ONE_AT_A_TIME = "event_lines_one_at_a_time"
OLDEST_SHARE = 8
"""One place in eight goes to whatever is longest due, however unurgent."""


class HeldEvent(msgspec.Struct, frozen=True):
    """An event handed out under a lease. A struct, because a worker makes tens of thousands of them a second."""

    id: UUID
    lease: UUID
    event_type: str
    source_service: str
    target_service: str
    payload: dict[str, Any]
    priority: int
    retry_count: int
    max_retries: int
    created_at: datetime
    seq: int
    ordering_key: str | None
    correlation_id: str | None
    traceparent: str | None
    origin_id: UUID

    @property
    def attempt(self) -> int:
        return self.retry_count + 1

    @property
    def allowed(self) -> int:
        return self.max_retries + 1


@dataclass(frozen=True, slots=True)
class Revived:
    """How many events of ended leases fell due again, and of how many it was the last attempt."""

    due: int
    dead: int


class EventLane(Lane[HeldEvent]):
    name = "events"
    bell = Bell.EVENTS
    can = frozenset({Can.DELAY, Can.RETRY, Can.DIE, Can.PRIORITY, Can.ORDER_BY_KEY, Can.EXPIRE})
    q = beside(__file__)
    row = HeldEvent

    async def claim(self, tx: Tx, limit: int, hold: timedelta, holder: str, **whom: Any) -> list[HeldEvent]:
        """Take due events of one service; when there are none, look whether somebody's lease has ended.

        With `patterns` (as LIKE has them) only events whose type fits one.
        """
        asked = {"patterns": None, "aged": aged_places(limit, random.random()), **whom}  # noqa: S311 fairness, not a secret
        try:
            found = await super().claim(tx, limit, hold, holder, **asked)
            if not found and await self.revive(tx, limit):
                return await super().claim(tx, limit, hold, holder, **asked)
        except Duplicate as error:
            if error.constraint == ONE_AT_A_TIME:
                raise Contended("somebody else took from the same line a moment ago") from error
            raise
        return found

    async def settle_done(self, tx: Tx, items: Sequence[HeldEvent]) -> list[UUID]:
        leases = {item.lease for item in items}
        if len(leases) > 1:
            return await tx.column(self.q.settle_done_of_many, **self.fences(items))
        return await tx.column(self.q.settle_done, ids=[item.id for item in items], lease=leases.pop())

    async def rota(self, tx: Tx) -> list[str]:
        """Every service that has something due: whom a worker goes round."""
        return await tx.column(self.q.services_with_due)

    async def revive(self, tx: Tx, batch: int) -> int:
        ended = await tx.one(Revived, self.q.revive, batch=batch)
        tx.count(self.name, "failed", ended.due)
        tx.count(self.name, "dead", ended.dead)
        return ended.due + ended.dead

    async def purge(self, tx: Tx, days: int, batch: int) -> int:
        return await tx.value(self.q.purge, days=days, batch=batch)


def aged_places(limit: int, chance: float) -> int:
    """How many of a claim's places go to the oldest: an eighth, on average also for a claim of one."""
    whole, rest = divmod(limit, OLDEST_SHARE)
    return whole + (chance < rest / OLDEST_SHARE)


LANE = EventLane()
