"""A lane: one of the three queues.

Each lane has its own table and named statements. Leases, fences and outcomes work the same in all lanes and are
implemented here. A lane declares its capabilities, and the conformance suite tests them.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum, auto
from typing import Any, ClassVar, Generic, Protocol, assert_never, cast
from uuid import UUID

import msgspec
from typing_extensions import TypeVar

from pabal.core.backoff import backoff
from pabal.core.error_text import MAX_CODE_LENGTH, MAX_ERROR_LENGTH, MAX_STACK_LENGTH, clean_error_text
from pabal.core.errors import PabalError
from pabal.core.ids import new_id
from pabal.db.doorbell.channels import Channel
from pabal.db.queries import Queries
from pabal.db.tx import Tx
from pabal.queue.outcome import Dead, Done, Outcome, Retry, Snooze

NO_REASON = "no reason given"


class Capability(Enum):
    """What a lane may support."""

    DELAY = auto()
    RETRY = auto()
    DEAD_LETTER = auto()
    PRIORITY = auto()
    ORDER_BY_KEY = auto()
    ARRIVAL_ORDER = auto()
    EXPIRE = auto()


class ClaimedRow(Protocol):
    """A row under a lease. `lease` is the fence: settling requires it."""

    @property
    def id(self) -> UUID: ...
    @property
    def lease(self) -> UUID: ...
    @property
    def attempt(self) -> int: ...
    @property
    def max_attempts(self) -> int: ...


ItemType = TypeVar("ItemType", bound=ClaimedRow)
FilterType = TypeVar("FilterType")
"""What a claim of the lane selects by: a service, an account, channels."""
OutcomeType = TypeVar("OutcomeType", default=Outcome)
"""The outcomes of a lane. A lane with its own outcomes must also settle Retry and Snooze, which the worker makes."""
OutcomeType_co = TypeVar("OutcomeType_co", covariant=True, default=Outcome)


class Settlement(msgspec.Struct, Generic[OutcomeType_co], frozen=True):
    """The outcome of one claimed row. `item` needs no more than the id and the fence. A struct, as the rows are."""

    item: ClaimedRow
    outcome: OutcomeType_co


@dataclass(frozen=True, slots=True)
class ClaimRequest(Generic[FilterType]):
    """A part of a claim: up to `limit` rows that match the filter."""

    claim_filter: FilterType
    limit: int


@dataclass(frozen=True, slots=True)
class ClaimedRows(Generic[ItemType]):
    """The rows of a claim, and for each of its requests whether more rows may be due."""

    items: list[ItemType]
    has_more: Sequence[bool]


class Lane(ABC, Generic[ItemType, FilterType, OutcomeType]):
    """A queue as workers and endpoints use it. A subclass supplies the statements and the claim's filter."""

    name: ClassVar[str]
    channel: ClassVar[Channel]
    capabilities: ClassVar[frozenset[Capability]]
    q: ClassVar[Queries]
    row_type: type[ItemType]
    outcome_types: ClassVar[tuple[type[Any], ...]] = (Done, Retry, Dead, Snooze)

    @abstractmethod
    async def claim(
        self, tx: Tx, limit: int, hold: timedelta, holder: str, claim_filter: FilterType, /
    ) -> list[ItemType]:
        """Claim up to `limit` due rows that match the filter, under a new lease that ends after `hold`."""

    async def claim_many(
        self, tx: Tx, requests: Sequence[ClaimRequest[FilterType]], limit: int, hold: timedelta, holder: str, /
    ) -> ClaimedRows[ItemType]:
        """Claim for several requests, up to `limit` rows in all.

        Here one claim after the other: after an error, the rows that are claimed already are returned.
        """
        items: list[ItemType] = []
        has_more: list[bool] = []
        for request in requests:
            request_limit = min(request.limit, limit - len(items))
            try:
                claimed = (
                    await self.claim(tx, request_limit, hold, holder, request.claim_filter) if request_limit else []
                )
            except PabalError:
                if not items:
                    raise
                has_more.append(True)
                continue
            items += claimed
            has_more.append(len(claimed) == request_limit)
        return ClaimedRows(items, has_more)

    async def claim_rows(self, tx: Tx, limit: int, hold: timedelta, holder: str, **parameters: Any) -> list[ItemType]:
        """Run the claim statement once, with the parameters that only this lane's statement has."""
        return await tx.all(
            self.row_type, self.q.claim, lease=new_id(), limit=limit, hold=hold, holder=holder, **parameters
        )

    async def settle(self, tx: Tx, settlements: Sequence[Settlement[OutcomeType | Retry | Snooze]]) -> set[UUID]:
        """Record the outcomes, one statement per kind. Returns the rows whose lease was still valid.

        A statement locks its rows in id order, so that two transactions that settle the same rows cannot deadlock. With
        several statements, all rows are locked first.
        """
        groups = group_by_outcome(cast("Sequence[Settlement]", settlements), self.capabilities)
        if groups.count_kinds() > 1:
            await tx.column(self.q.lock, **self.fences([settlement.item for settlement in settlements]))
        settled: set[UUID] = set()
        if groups.done:
            ids = await self.settle_done(tx, cast("list[ItemType]", groups.done))
            tx.count_outcomes(self.name, "done", len(ids))
            settled.update(ids)
        if rows := groups.retries:
            ids = await tx.column(self.q.settle_retry, **self._fences_of(rows), **retry_columns(rows))
            tx.count_outcomes(self.name, "failed", len(ids))
            settled.update(ids)
        if rows := groups.dead:
            ids = await tx.column(self.q.settle_dead, **self._fences_of(rows), **failure_columns(rows))
            tx.count_outcomes(self.name, "dead", len(ids))
            settled.update(ids)
        if rows := groups.snoozed:
            settled.update(await tx.column(self.q.settle_snooze, **self._fences_of(rows), **snooze_columns(rows)))
        due_now = [item for item, outcome in (*groups.retries, *groups.snoozed) if is_due_now(outcome)]
        for topic in {self.topic(item) for item in due_now if item.id in settled}:
            tx.notify(self.channel, topic)
        return settled

    def topic(self, item: ClaimedRow) -> str:  # noqa: ARG002 for lanes whose listeners wait for a topic
        """The topic of the wakeup when this row is due again. The empty topic addresses all listeners."""
        return ""

    def settles_atomically(self, settlements: Sequence[Settlement[object]]) -> bool:
        """Whether `settle` needs no transaction around it: it runs one statement, or opens its own transaction."""
        return all(isinstance(settlement.outcome, Done) for settlement in settlements)

    async def settle_done(self, tx: Tx, items: Sequence[ItemType]) -> list[UUID]:
        return await tx.column(self.q.settle_done, **self.fences(items))

    async def extend(self, tx: Tx, items: Sequence[ClaimedRow], hold: timedelta) -> set[UUID]:
        """Extend the leases in one statement. Returns the rows whose lease was lost."""
        return {*await tx.column(self.q.extend, hold=hold, **self.fences(items))}

    async def release(self, tx: Tx, items: Sequence[ClaimedRow]) -> set[UUID]:
        """Make the rows due again at once, without counting an attempt."""
        return await self.settle(tx, [Settlement(item, Snooze("released", timedelta())) for item in items])

    async def revive(self, tx: Tx, batch: int) -> int:  # noqa: ARG002 for lanes whose claim does not find these rows
        """Make rows with an expired lease due again, in lanes whose claim does not find them."""
        return 0

    async def expire(self, tx: Tx, batch: int) -> int:
        """End rows that waited too long. Leased rows are not expired."""
        return await tx.run(self.q.expire, batch=batch)

    async def purge(self, tx: Tx, days: int, batch: int) -> int:
        """Delete rows that ended more than `days` ago."""
        return await tx.run(self.q.purge, days=days, batch=batch)

    def fences(self, items: Sequence[ClaimedRow]) -> dict[str, list[Any]]:
        return {"ids": [item.id for item in items], "leases": [item.lease for item in items]}

    def _fences_of(self, rows: Sequence[tuple[ClaimedRow, Outcome]]) -> dict[str, list[Any]]:
        return self.fences([item for item, _ in rows])


@dataclass(frozen=True, slots=True)
class OutcomeGroups:
    """Settlements by the outcome to settle, each group in id order."""

    done: list[ClaimedRow] = field(default_factory=list[ClaimedRow])
    retries: list[tuple[ClaimedRow, Retry]] = field(default_factory=list[tuple[ClaimedRow, Retry]])
    dead: list[tuple[ClaimedRow, Dead]] = field(default_factory=list[tuple[ClaimedRow, Dead]])
    snoozed: list[tuple[ClaimedRow, Snooze]] = field(default_factory=list[tuple[ClaimedRow, Snooze]])

    def count_kinds(self) -> int:
        return sum(map(bool, (self.done, self.retries, self.dead, self.snoozed)))


def group_by_outcome(settlements: Sequence[Settlement], capabilities: frozenset[Capability]) -> OutcomeGroups:
    groups = OutcomeGroups()
    for settlement in sorted(settlements, key=settlement_row_id):
        item = settlement.item
        if isinstance(settlement.outcome, Done):  # most rows, so they take the shortest way
            groups.done.append(item)
            continue
        outcome = decide_outcome(settlement.outcome, item, capabilities, random.random())  # noqa: S311 jitter, not a secret
        match outcome:
            case Done():
                groups.done.append(item)
            case Retry():
                groups.retries.append((item, outcome))
            case Dead():
                groups.dead.append((item, outcome))
            case Snooze():
                groups.snoozed.append((item, outcome))
            case _:
                assert_never(outcome)
    return groups


def settlement_row_id(settlement: Settlement[object]) -> UUID:
    return settlement.item.id


def decide_outcome(outcome: Outcome, item: ClaimedRow, capabilities: frozenset[Capability], jitter: float) -> Outcome:
    """Turn a handler's outcome into the one to settle.

    A retry without attempts left becomes dead. In a lane without retries it becomes a snooze.
    """
    match outcome:
        case Retry() if Capability.RETRY not in capabilities:
            return Snooze(outcome.error, outcome.delay or timedelta())
        case Retry(error, _, code, stack) if item.attempt >= item.max_attempts:
            return Dead(error, code, stack)
        case Retry(error, None, code, stack):
            return Retry(error, backoff(item.attempt, jitter), code, stack)
        case Done() | Retry() | Dead() | Snooze():
            return outcome
        case _:
            assert_never(outcome)


def is_due_now(outcome: Retry | Snooze) -> bool:
    """Whether the row is due again at once. A later row is found when listeners poll."""
    return not outcome.delay


def retry_columns(rows: Sequence[tuple[ClaimedRow, Retry]]) -> dict[str, list[Any]]:
    """The arguments of settle_retry besides the fences."""
    return failure_columns(rows) | {"delays": [retry.delay for _, retry in rows]}


def failure_columns(rows: Sequence[tuple[ClaimedRow, Retry | Dead]]) -> dict[str, list[Any]]:
    """The arguments of settle_dead besides the fences."""
    clean = CleanTexts()
    return {
        "errors": [clean.text(outcome.error, MAX_ERROR_LENGTH) or NO_REASON for _, outcome in rows],
        "codes": [clean.text(outcome.code, MAX_CODE_LENGTH) for _, outcome in rows],
        "stacks": [clean.text(outcome.stack, MAX_STACK_LENGTH) for _, outcome in rows],
    }


def snooze_columns(rows: Sequence[tuple[ClaimedRow, Snooze]]) -> dict[str, list[Any]]:
    """The arguments of settle_snooze besides the fences."""
    clean = CleanTexts()
    return {
        "reasons": [clean.text(snooze.reason, MAX_ERROR_LENGTH) or NO_REASON for _, snooze in rows],
        "delays": [snooze.delay for _, snooze in rows],
    }


class CleanTexts:
    """Cleans the texts of one statement. A thousand rows often have one text, which is cleaned once."""

    def __init__(self) -> None:
        self._texts: dict[tuple[str, int], str] = {}

    def text(self, text: str | None, limit: int) -> str | None:
        if text is None:
            return None
        if (text, limit) not in self._texts:
            self._texts[text, limit] = clean_error_text(text, limit)
        return self._texts[text, limit]
