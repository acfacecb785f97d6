"""Walk the chain of seals and say where it breaks.

What is proven: a sealed row that was changed or removed, a row put in among sealed ones, a seal that was changed or
removed. What is not: what happened to a row before it was sealed, a second or so after its commit; a lie that was added
at the end like any other row; and seals cut off the end of the chain, unless the head was noted down somewhere else.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from pabal.audit.digest import Row
from pabal.audit.walk import Break, Breaks, Head, Seal, Walk
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.keys.ring import Ring

Q = beside(__file__)

SEALS = 200
ROWS = 5000
LOWEST = -(1 << 63)  # ids are positive, unless somebody chose one


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the walk found. `head` is worth noting down where nobody who can write to the database can change it."""

    seals: int
    rows: int
    unsealed: int
    head: Head | None
    ahead: int
    """How many seals were counted after the last one: none, unless the server crashed or somebody cut the chain."""
    broken: int
    breaks: tuple[Break, ...]
    """The first of them; `broken` counts all."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """What the server counts by itself."""

    next_xid: int
    seals: int


@dataclass(frozen=True, slots=True)
class Place:
    id: int
    xid: int


@dataclass(frozen=True, slots=True)
class Start:
    """Where a walk begins: behind a seal, and for rows that no seal names behind the last row sealed by then."""

    seal: Seal | None = None
    row: int = LOWEST


BEGINNING = Start()


async def verify(tx: Tx, keys: Ring, noted: Head | None = None, start: Start = BEGINNING) -> Verdict:
    """Hold every seal against the one before, every sealed row against its seal, and ask of any other why it has none.

    Everything is read in portions, and of what was read only one bit for each row is kept.
    """
    numbers = await tx.one(Numbers, Q.numbers)
    breaks = Breaks()
    walk = Walk(keys, breaks, noted, start.seal)
    after = start.seal.id if start.seal else LOWEST
    while seals := await tx.all(Seal, Q.seals, after=after, limit=SEALS):
        for some in portions(seals):
            named = [*chain.from_iterable(seal.named() for seal in some)]
            rows = {row.id: row for row in await tx.all(Row, Q.rows, ids=named)}
            for seal in some:
                walk.take(seal, rows)
        after = seals[-1].id
    walk.finish()
    unsealed, after = 0, start.row
    while places := await tx.all(Place, Q.places, after=after, limit=ROWS):
        unsealed += sum(walk.other(place.id, place.xid, numbers.next_xid) for place in places)
        after = places[-1].id
    ahead = max(0, numbers.seals - (walk.head.id if walk.head else 0))
    return Verdict(walk.seals, walk.rows, unsealed, walk.head, ahead, breaks.count, tuple(breaks.first))


def portions(seals: list[Seal]) -> Iterator[list[Seal]]:
    """Seals whose rows are few enough to be held at once."""
    some: list[Seal] = []
    rows = 0
    for seal in seals:
        if some and rows + len(seal.ids) > ROWS:
            yield some
            some, rows = [], 0
        some.append(seal)
        rows += len(seal.ids)
    yield some
