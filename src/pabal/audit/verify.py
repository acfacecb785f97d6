"""Walk the chain of seals and say where it breaks.

What is proven: a sealed row that was changed or removed, a row put in among sealed ones, a seal that was changed or
removed. What is not: what happened to a row before it was sealed, a second or so after its commit; a lie that was added
at the end like any other row; and seals cut off the end of the chain, unless the head was noted down somewhere else.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from pabal.audit.digest import AuditRow
from pabal.audit.walk import ChainBreak, ChainBreaks, ChainHead, ChainVerifier, Seal
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.keys.ring import KeyRing

Q = load_queries(__file__)

SEALS_PER_BATCH = 200
ROWS_PER_BATCH = 5000
MIN_ROW_ID = -(1 << 63)  # ids are positive, unless somebody chose one


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What the walk found. `head` is worth noting down where nobody who can write to the database can change it."""

    seals: int
    rows: int
    unsealed: int
    head: ChainHead | None
    ahead: int
    """How many seals were counted after the last one: none, unless the server crashed or somebody cut the chain."""
    broken: int
    breaks: tuple[ChainBreak, ...]
    """The first of them; `broken` counts all."""


@dataclass(frozen=True, slots=True)
class ServerCounters:
    """What the server counts by itself."""

    next_xid: int
    seals: int


@dataclass(frozen=True, slots=True)
class AuditRowId:
    id: int
    xid: int


@dataclass(frozen=True, slots=True)
class VerifyStart:
    """Where a walk begins: behind a seal, and for rows that no seal names behind the last row sealed by then."""

    seal: Seal | None = None
    row: int = MIN_ROW_ID


FROM_THE_BEGINNING = VerifyStart()


async def verify_audit_log(
    tx: Tx, keyring: KeyRing, expected_head: ChainHead | None = None, start: VerifyStart = FROM_THE_BEGINNING
) -> VerifyReport:
    """Hold every seal against the one before, every sealed row against its seal, and ask of any other why it has none.

    Everything is read in portions, and of what was read only one bit for each row is kept.
    """
    numbers = await tx.one(ServerCounters, Q.server_counters)
    breaks = ChainBreaks()
    walk = ChainVerifier(keyring, breaks, expected_head, start.seal)
    after = start.seal.id if start.seal else MIN_ROW_ID
    while seals := await tx.all(Seal, Q.list_seals, after=after, limit=SEALS_PER_BATCH):
        for some in batch_seals(seals):
            named = [*chain.from_iterable(seal.row_ids() for seal in some)]
            rows = {row.id: row for row in await tx.all(AuditRow, Q.list_rows, ids=named)}
            for seal in some:
                walk.check_seal(seal, rows)
        after = seals[-1].id
    walk.finish()
    unsealed, after = 0, start.row
    while places := await tx.all(AuditRowId, Q.list_row_ids, after=after, limit=ROWS_PER_BATCH):
        unsealed += sum(walk.check_row(place.id, place.xid, numbers.next_xid) for place in places)
        after = places[-1].id
    ahead = max(0, numbers.seals - (walk.head.id if walk.head else 0))
    return VerifyReport(walk.seals, walk.rows, unsealed, walk.head, ahead, breaks.count, tuple(breaks.first))


def batch_seals(seals: list[Seal]) -> Iterator[list[Seal]]:
    """Seals whose rows are few enough to be held at once."""
    some: list[Seal] = []
    rows = 0
    for seal in seals:
        if some and rows + len(seal.ids) > ROWS_PER_BATCH:
            yield some
            some, rows = [], 0
        some.append(seal)
        rows += len(seal.ids)
    yield some
