"""Seal what was written, so that tampering shows: a chain of HMACs whose key is not in the database.

Whoever writes waits for nobody: rows are sealed a moment later, behind the oldest running transaction, which is where
no row can appear any more. Until then a row is protected by grants and triggers only.
"""

from dataclasses import dataclass
from datetime import datetime

from pabal.audit.digest import Row, Said, digest, mac
from pabal.core.log import get_logger
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.keys.key import Key

Q = beside(__file__)
log = get_logger()


@dataclass(frozen=True, slots=True)
class End:
    """Where the chain ends now, and the moment of the seal to come."""

    previous: bytes | None
    below: int
    floor: int
    reborn: bool
    """The server counts lower than the chain: this database was restored, and its transactions are numbered anew."""
    moment: datetime
    sealed: str


@dataclass(frozen=True, slots=True)
class Reach:
    """What is sealed: all rows up to `floor`, and above it all that transactions older than `below` wrote."""

    below: int
    floor: int


async def seal(tx: Tx, key: Key, batch: int) -> int:
    """Seal about `batch` rows, never half of what a transaction wrote; how many were sealed.

    Two that seal at once cannot both succeed: no seal has two successors.
    """
    end = await tx.one(End, Q.end)
    rows, reach = await due(tx, end, batch)
    if not rows:
        return 0
    if reach.floor != end.floor:
        log.warning("transactions renumbered", floor=reach.floor)
    await add(tx, key, end, rows, reach)
    return len(rows)


async def due(tx: Tx, end: End, batch: int) -> tuple[list[Row], Reach]:
    """The rows to seal now, and what will be sealed with them.

    A restored database first seals what its earlier life left behind. Ids went on where they were, so from then on the
    highest sealed one keeps the lives apart, however their transactions are numbered.
    """
    reach = Reach(end.below, end.floor)
    rows = await waiting(tx, reach, batch, finished=end.reborn)
    if not end.reborn or len(rows) >= batch:
        return rows, advanced(reach, rows)
    anew = Reach(0, max([await tx.value(Q.highest), *(row.id for row in rows)]))
    if rows:
        return rows, anew
    rows = await waiting(tx, anew, batch, finished=False)
    return rows, advanced(anew, rows)


async def waiting(tx: Tx, reach: Reach, batch: int, *, finished: bool) -> list[Row]:
    return await tx.all(Row, Q.waiting, below=reach.below, floor=reach.floor, finished=finished, batch=batch)


def advanced(reach: Reach, rows: list[Row]) -> Reach:
    return Reach(rows[-1].xid + 1, reach.floor) if rows else reach


async def add(tx: Tx, key: Key, end: End, rows: list[Row], reach: Reach) -> None:
    said = compose(key, end, rows, reach)
    await tx.run(
        Q.add,
        previous=said.previous,
        first_id=said.first_id,
        last_id=said.last_id,
        count=said.count,
        ids=said.ids,
        macs=said.macs,
        below=said.below,
        floor=said.floor,
        key_id=said.key_id,
        moment=end.moment,
        digest=digest(key, said),
    )


def compose(key: Key, end: End, rows: list[Row], reach: Reach) -> Said:
    ordered = sorted(rows, key=lambda row: row.id)
    return Said(
        previous=end.previous,
        first_id=ordered[0].id,
        last_id=ordered[-1].id,
        count=len(ordered),
        ids=[row.id for row in ordered],
        macs=b"".join(mac(key, row) for row in ordered),
        below=reach.below,
        floor=reach.floor,
        key_id=key.id,
        sealed=end.sealed,
    )
