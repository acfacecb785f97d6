"""A lane: one of the three queues.

Each lane keeps its own table and its own few named statements; everything about leases, fences and outcomes that is the
same for all of them is here. What a lane can do it declares, and the conformance suite holds it to that.
"""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto
from typing import Any, ClassVar, Generic, Protocol, TypeVar, assert_never, cast
from uuid import UUID

from pabal.core.ids import new_id
from pabal.db.bells import Bell
from pabal.db.queries import Queries
from pabal.db.tx import Tx
from pabal.queue.backoff import backoff
from pabal.queue.outcome import Dead, Done, Outcome, Retry, Snooze

TEXT_LIMIT = 8000
"""Most characters of an error that are kept."""


class Can(Enum):
    """What a lane may be able to do."""

    DELAY = auto()
    RETRY = auto()
    DIE = auto()
    PRIORITY = auto()
    ORDER_BY_KEY = auto()
    ARRIVAL_ORDER = auto()
    EXPIRE = auto()


class Claimed(Protocol):
    """A row under a lease. `lease` is the fence: it must be shown to settle."""

    @property
    def id(self) -> UUID: ...
    @property
    def lease(self) -> UUID: ...
    @property
    def attempt(self) -> int: ...
    @property
    def allowed(self) -> int: ...


Item = TypeVar("Item", bound=Claimed)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one claimed row. Whatever of it is at hand will do: the fence is what counts."""

    item: Claimed
    outcome: Outcome


class Lane(Generic[Item]):
    """The engine's view of a queue. A subclass names its table's statements and how a claim says for whom it is."""

    name: ClassVar[str]
    bell: ClassVar[Bell]
    can: ClassVar[frozenset[Can]]
    q: ClassVar[Queries]
    row: type[Item]

    async def claim(self, tx: Tx, limit: int, hold: timedelta, holder: str, **whom: Any) -> list[Item]:
        """Take up to `limit` due rows under one new lease that ends after `hold`."""
        return await tx.all(self.row, self.q.claim, lease=new_id(), limit=limit, hold=hold, holder=holder, **whom)

    async def settle(self, tx: Tx, verdicts: Sequence[Verdict]) -> set[UUID]:
        """Write down what became of them, one statement a kind; returns those whose lease still held.

        Rows are locked in the order of their ids, so that two settlers of the same rows never wait for each other in a
        circle; several statements therefore lock them all before the first.
        """
        ended: defaultdict[type[Outcome], list[tuple[Claimed, Outcome]]] = defaultdict(list)
        for verdict in sorted(verdicts, key=by_id):
            outcome = decide(verdict.outcome, verdict.item, self.can, random.random())  # noqa: S311 jitter, not a secret
            ended[type(outcome)].append((verdict.item, outcome))
        if len(ended) > 1:
            await tx.column(self.q.lock, **self.fences([verdict.item for verdict in verdicts]))
        settled: set[UUID] = set()
        for kind, rows in ended.items():
            items = [item for item, _ in rows]
            if kind is Done:
                ids = await self.settle_done(tx, cast("list[Item]", items))
            else:
                said = columns(kind, [outcome for _, outcome in rows])
                ids = await tx.column(getattr(self.q, STATEMENTS[kind]), **self.fences(items), **said)
            settled.update(ids)
            if kind in COUNTED:
                tx.count(self.name, COUNTED[kind], len(ids))
        if settled and ended.keys() - {Done, Dead}:
            tx.ring(self.bell)
        return settled

    async def settle_done(self, tx: Tx, items: Sequence[Item]) -> list[UUID]:
        return await tx.column(self.q.settle_done, **self.fences(items))

    async def extend(self, tx: Tx, items: Sequence[Claimed], hold: timedelta) -> set[UUID]:
        """Hold them longer, all in one statement; returns those that were lost meanwhile."""
        return {*await tx.column(self.q.extend, hold=hold, **self.fences(items))}

    async def release(self, tx: Tx, items: Sequence[Claimed]) -> set[UUID]:
        """Give them back unspent: somebody else may have them at once."""
        return await self.settle(tx, [Verdict(item, Snooze("released", timedelta())) for item in items])

    async def revive(self, tx: Tx, batch: int) -> int:  # noqa: ARG002 for lanes whose claim does not do it by itself
        """Make rows due whose lease has ended, where the claim does not see them by itself."""
        return 0

    async def expire(self, tx: Tx, batch: int) -> int:
        """End what waited too long. Nothing that somebody holds."""
        return await tx.run(self.q.expire, batch=batch)

    async def purge(self, tx: Tx, days: int, batch: int) -> int:
        """Delete what ended more than `days` ago."""
        return await tx.run(self.q.purge, days=days, batch=batch)

    def fences(self, items: Sequence[Claimed]) -> dict[str, list[Any]]:
        return {"ids": [item.id for item in items], "leases": [item.lease for item in items]}


def by_id(verdict: Verdict) -> UUID:
    return verdict.item.id


def decide(outcome: Outcome, item: Claimed, can: frozenset[Can], chance: float) -> Outcome:
    """Turn what a handler said into what will be: a retry without attempts left is a death, a lane that counts no
    attempts simply takes the row back.
    """  # noqa: D205 one sentence
    match outcome:
        case Retry() if Can.RETRY not in can:
            return Snooze(outcome.why, outcome.after or timedelta())
        case Retry(why, _, code, stack) if item.attempt >= item.allowed:
            return Dead(why, code, stack)
        case Retry(why, None, code, stack):
            return Retry(why, backoff(item.attempt, chance), code, stack)
        case Done() | Retry() | Dead() | Snooze():
            return outcome
        case _:
            assert_never(outcome)


def columns(kind: type[Outcome], outcomes: Sequence[Any]) -> dict[str, list[Any]]:
    """What a kind of outcome says, column by column, as its statement takes it."""
    said: dict[str, list[Any]] = {"whys": [cut(outcome.why) or "no reason given" for outcome in outcomes]}
    if kind in {Retry, Snooze}:
        said["afters"] = [outcome.after for outcome in outcomes]
    if kind in {Retry, Dead}:
        said["codes"] = [cut(outcome.code) for outcome in outcomes]
        said["stacks"] = [cut(outcome.stack) for outcome in outcomes]
    return said


def cut(text: str | None) -> str | None:
    """Keep the beginning of a text, without the one character PostgreSQL cannot store."""
    return None if text is None else text.replace("\x00", "\ufffd")[:TEXT_LIMIT]


STATEMENTS: dict[type[Outcome], str] = {
    Retry: "settle_retry",
    Dead: "settle_dead",
    Snooze: "settle_snooze",
}
COUNTED: dict[type[Outcome], str] = {Done: "done", Retry: "failed", Dead: "dead"}
"""What the pulse counts, and as what."""
