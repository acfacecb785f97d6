"""Rewrap: bring what is encrypted under the active key, beside a hub that goes on writing.

A column of envelopes is two statements and a line of `envelopes` in `rewrap.sql`, and a line of `COLUMNS`.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from uuid import UUID

from pabal.core.errors import Unreadable
from pabal.db.queries import Query, beside
from pabal.db.tx import Tx
from pabal.keys.envelope import Place, seal, unseal, written_with
from pabal.keys.key import Use
from pabal.keys.ring import Ring

Q = beside(__file__)

BATCH = 500
START = UUID(int=0)
NAMED = 100
"""How many envelopes that do not open are told one by one: where a key is lost, it is all of them."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of envelopes: how to find those under another key, and how to put them back."""

    table: str
    name: str
    others: Query
    put: Query


COLUMNS = (
    Column("service_tokens", "access_token", Q.other_access_tokens, Q.put_access_tokens),
    Column("refresh_tokens", "refresh_token", Q.other_refresh_tokens, Q.put_refresh_tokens),
    Column("pabal.subscriptions", "secret", Q.other_secrets, Q.put_secrets),
    Column("pabal.subscriptions", "previous_secret", Q.other_previous_secrets, Q.put_previous_secrets),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """An envelope and its row."""

    id: UUID
    envelope: str


@dataclass(frozen=True, slots=True)
class Count:
    """How many envelopes lie under a key; no key is named for what is not an envelope."""

    key_id: str | None
    count: int


@dataclass(frozen=True, slots=True)
class Batch:
    """What became of some rows of a column. `last` is None when the column is at its end."""

    last: UUID | None
    rewrapped: int = 0
    passed: int = 0
    unreadable: tuple[Place, ...] = ()

    @property
    def seen(self) -> int:
        return self.rewrapped + self.passed + len(self.unreadable)


@dataclass(slots=True)
class Tally:
    """What a rewrap came to. `left` were being changed by somebody else, and are for the next time."""

    rewrapped: int = 0
    left: int = 0
    unreadable: int = 0
    named: list[Place] = field(default_factory=list[Place])


async def rewrap_all(
    transaction: Callable[[], AbstractAsyncContextManager[Tx]], ring: Ring, told: Callable[[Batch], None]
) -> Tally:
    """Walk every column in small transactions; stopped at any point, it goes on from there when started again.

    What was passed by is tried again for as long as that gets anywhere.
    """
    total = Tally()
    while True:
        walk = Tally()
        for column in COLUMNS:
            after: UUID | None = START
            while after is not None:
                async with transaction() as tx:
                    batch = await rewrap(tx, ring, column, after)
                walk.rewrapped += batch.rewrapped
                walk.left += batch.passed
                walk.unreadable += len(batch.unreadable)
                walk.named += batch.unreadable[: NAMED - len(walk.named)]
                told(batch)
                after = batch.last
        total = Tally(total.rewrapped + walk.rewrapped, walk.left, walk.unreadable, walk.named)
        if not walk.left or not walk.rewrapped:
            return total


async def rewrap(tx: Tx, ring: Ring, column: Column, after: UUID, batch: int = BATCH) -> Batch:
    """Seal again the next envelopes behind `after` that are not under the active key.

    One that does not open stays as it is: whoever finds the key again finds it too.
    """
    mark = written_with(ring.active(Use.ENCRYPTION))
    cells = await tx.all(Cell, column.others, after=after, mark=mark, batch=batch)
    fresh: dict[Cell, str] = {}
    unreadable: list[Place] = []
    for cell in cells:
        place = Place(column.table, column.name, cell.id)
        try:
            fresh[cell] = seal(ring, unseal(ring, cell.envelope, place), place)
        except Unreadable:
            unreadable.append(place)
    put = await tx.run(
        column.put,
        ids=[cell.id for cell in fresh],
        were=[cell.envelope for cell in fresh],
        envelopes=[*fresh.values()],
    )
    last = cells[-1].id if len(cells) == batch else None
    return Batch(last, put, len(fresh) - put, tuple(unreadable))


async def envelopes(tx: Tx) -> dict[str | None, int]:
    """How many envelopes lie under each key."""
    return {each.key_id: each.count for each in await tx.all(Count, Q.envelopes)}
