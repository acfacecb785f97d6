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
from typing import Any, ClassVar, Generic, Protocol, assert_never, cast
from uuid import UUID

from typing_extensions import TypeVar

from pabal.core.ids import new_id
from pabal.db.channels import Channel
from pabal.db.queries import Queries
from pabal.db.tx import Tx
from pabal.queue.outcome import Dead, Done, Outcome, Retry, Snooze, backoff

MAX_TEXT_LENGTH = 8000
"""Most characters of an error that are kept."""


class Capability(Enum):
    """What a lane may be able to do."""

    DELAY = auto()
    RETRY = auto()
    DEAD_LETTER = auto()
    PRIORITY = auto()
    ORDER_BY_KEY = auto()
    ARRIVAL_ORDER = auto()
    EXPIRE = auto()


class ClaimedRow(Protocol):
    """A row under a lease. `lease` is the fence: it must be shown to settle."""

    @property
    def id(self) -> UUID: ...
    @property
    def lease(self) -> UUID: ...
    @property
    def attempt(self) -> int: ...
    @property
    def max_attempts(self) -> int: ...


ItemType = TypeVar("ItemType", bound=ClaimedRow)
OutcomeType = TypeVar("OutcomeType", default=Outcome)
"""The outcomes of a lane. A lane with outcomes of its own must also settle Retry and Snooze, which the worker makes."""
OutcomeType_co = TypeVar("OutcomeType_co", covariant=True, default=Outcome)


@dataclass(frozen=True, slots=True)
class Settlement(Generic[OutcomeType_co]):
    """What became of one claimed row. Whatever of it is at hand will do: the fence is what counts."""

    item: ClaimedRow
    outcome: OutcomeType_co


class Lane(Generic[ItemType, OutcomeType]):
    """The engine's view of a queue. A subclass names its table's statements and how a claim says for whom it is."""

    name: ClassVar[str]
    channel: ClassVar[Channel]
    capabilities: ClassVar[frozenset[Capability]]
    q: ClassVar[Queries]
    row_type: type[ItemType]
    outcome_types: ClassVar[tuple[type[Any], ...]] = (Done, Retry, Dead, Snooze)

    async def claim(self, tx: Tx, limit: int, hold: timedelta, holder: str, **claim_filter: Any) -> list[ItemType]:
        """Take up to `limit` due rows under one new lease that ends after `hold`."""
        return await tx.all(
            self.row_type, self.q.claim, lease=new_id(), limit=limit, hold=hold, holder=holder, **claim_filter
        )

    async def settle(self, tx: Tx, settlements: Sequence[Settlement[OutcomeType | Retry | Snooze]]) -> set[UUID]:
        """Write down what became of them, one statement a kind; returns those whose lease still held.

        Rows are locked in the order of their ids, so that two settlers of the same rows never wait for each other in a
        circle; several statements therefore lock them all before the first.
        """
        ended: defaultdict[type[Outcome], list[tuple[ClaimedRow, Outcome]]] = defaultdict(list)
        for verdict in sorted(settlements, key=settlement_row_id):
            outcome = decide_outcome(cast("Outcome", verdict.outcome), verdict.item, self.capabilities, random.random())  # noqa: S311 jitter, not a secret
            ended[type(outcome)].append((verdict.item, outcome))
        if len(ended) > 1:
            await tx.column(self.q.lock, **self.fences([verdict.item for verdict in settlements]))
        settled: set[UUID] = set()
        for kind, rows in ended.items():
            items = [item for item, _ in rows]
            if kind is Done:
                ids = await self.settle_done(tx, cast("list[ItemType]", items))
            else:
                said = outcome_columns(kind, [outcome for _, outcome in rows])
                ids = await tx.column(getattr(self.q, SETTLE_QUERIES[kind]), **self.fences(items), **said)
            settled.update(ids)
            if kind in COUNTED_OUTCOMES:
                tx.count_outcomes(self.name, COUNTED_OUTCOMES[kind], len(ids))
        if settled and ended.keys() - {Done, Dead}:
            tx.notify(self.channel)
        return settled

    def settles_atomically(self, settlements: Sequence[Settlement[object]]) -> bool:
        """Whether `settle` needs no transaction around it: one statement, or a transaction of its own."""
        return all(isinstance(settlement.outcome, Done) for settlement in settlements)

    async def settle_done(self, tx: Tx, items: Sequence[ItemType]) -> list[UUID]:
        return await tx.column(self.q.settle_done, **self.fences(items))

    async def extend(self, tx: Tx, items: Sequence[ClaimedRow], hold: timedelta) -> set[UUID]:
        """Hold them longer, all in one statement; returns those that were lost meanwhile."""
        return {*await tx.column(self.q.extend, hold=hold, **self.fences(items))}

    async def release(self, tx: Tx, items: Sequence[ClaimedRow]) -> set[UUID]:
        """Give them back unspent: somebody else may have them at once."""
        return await self.settle(tx, [Settlement(item, Snooze("released", timedelta())) for item in items])

    async def revive(self, tx: Tx, batch: int) -> int:  # noqa: ARG002 for lanes whose claim does not do it by itself
        """Make rows due whose lease has ended, where the claim does not see them by itself."""
        return 0

    async def expire(self, tx: Tx, batch: int) -> int:
        """End what waited too long. Nothing that somebody holds."""
        return await tx.run(self.q.expire, batch=batch)

    async def purge(self, tx: Tx, days: int, batch: int) -> int:
        """Delete what ended more than `days` ago."""
        return await tx.run(self.q.purge, days=days, batch=batch)

    def fences(self, items: Sequence[ClaimedRow]) -> dict[str, list[Any]]:
        return {"ids": [item.id for item in items], "leases": [item.lease for item in items]}


def settlement_row_id(verdict: Settlement[object]) -> UUID:
    return verdict.item.id


def decide_outcome(outcome: Outcome, item: ClaimedRow, capabilities: frozenset[Capability], jitter: float) -> Outcome:
    """Turn a handler's outcome into the one to settle.

    A retry without attempts left becomes dead. A lane that does not count attempts takes the row back instead.
    """
    match outcome:
        case Retry() if Capability.RETRY not in capabilities:
            return Snooze(outcome.error, outcome.delay or timedelta())
        case Retry(why, _, code, stack) if item.attempt >= item.max_attempts:
            return Dead(why, code, stack)
        case Retry(why, None, code, stack):
            return Retry(why, backoff(item.attempt, jitter), code, stack)
        case Done() | Retry() | Dead() | Snooze():
            return outcome
        case _:
            assert_never(outcome)


def outcome_columns(kind: type[Outcome], outcomes: Sequence[Any]) -> dict[str, list[Any]]:
    """The columns of one kind of outcome, as its settle statement takes them."""
    if kind is Snooze:
        return {
            "reasons": [truncate_text(outcome.reason) or "no reason given" for outcome in outcomes],
            "delays": [outcome.delay for outcome in outcomes],
        }
    columns: dict[str, list[Any]] = {
        "errors": [truncate_text(outcome.error) or "no reason given" for outcome in outcomes],
        "codes": [truncate_text(outcome.code) for outcome in outcomes],
        "stacks": [truncate_text(outcome.stack) for outcome in outcomes],
    }
    if kind is Retry:
        columns["delays"] = [outcome.delay for outcome in outcomes]
    return columns


def truncate_text(text: str | None) -> str | None:
    """Keep the beginning of a text, without the one character PostgreSQL cannot store."""
    return None if text is None else text.replace("\x00", "\ufffd")[:MAX_TEXT_LENGTH]


SETTLE_QUERIES: dict[type[Outcome], str] = {
    Retry: "settle_retry",
    Dead: "settle_dead",
    Snooze: "settle_snooze",
}
COUNTED_OUTCOMES: dict[type[Outcome], str] = {Done: "done", Retry: "failed", Dead: "dead"}
"""What the pulse counts, and as what."""
