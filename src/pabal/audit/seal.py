"""Seal what was written, so that tampering shows: a chain of HMACs whose key is not in the database.

Whoever writes waits for nobody: rows are sealed a moment later, behind the oldest running transaction, which is where
no row can appear any more. Until then a row is protected by grants and triggers only.
"""

import hmac
from dataclasses import dataclass
from datetime import datetime

import msgspec

from pabal.core.log import get_logger
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.keys.key import Key

MAC_BYTES = 8
"""Bytes kept for each row: enough to tell which one changed; the seal's digest, which is whole, covers them all."""


class AuditRow(msgspec.Struct, frozen=True, array_like=True):
    """A row of the log, every column of it."""

    id: int
    at: str
    actor: str
    action: str
    subject: str | None
    details: str
    client_ip: str | None
    request_id: str | None
    xid: int


class SealContent(msgspec.Struct, frozen=True, array_like=True):
    """All that a seal says."""

    previous: bytes | None
    first_id: int
    last_id: int
    count: int
    ids: list[int]
    macs: bytes
    below: int
    floor: int
    key_id: str
    sealed: str


def row_mac(key: Key, row: AuditRow) -> bytes:
    return hmac.digest(key.secret, b"row " + msgspec.json.encode(row), "sha256")[:MAC_BYTES]


def seal_digest(key: Key, content: SealContent) -> bytes:
    return hmac.digest(key.secret, b"seal " + msgspec.json.encode(content), "sha256")


Q = load_queries(__file__)
log = get_logger()


@dataclass(frozen=True, slots=True)
class ChainEnd:
    """Where the chain ends now, and the moment of the seal to come."""

    previous: bytes | None
    below: int
    floor: int
    is_restored: bool
    """The server counts lower than the chain: this database was restored, and its transactions are numbered anew."""
    sealed_at: datetime
    sealed: str


@dataclass(frozen=True, slots=True)
class SealedRange:
    """What is sealed: all rows up to `floor`, and above it all that transactions older than `below` wrote."""

    below: int
    floor: int


async def seal_audit_log(tx: Tx, key: Key, batch: int) -> int:
    """Seal about `batch` rows, never half of what a transaction wrote; how many were sealed.

    Two that seal at once cannot both succeed: no seal has two successors.
    """
    end = await tx.one(ChainEnd, Q.chain_end)
    rows, reach = await select_rows_to_seal(tx, end, batch)
    if not rows:
        return 0
    if reach.floor != end.floor:
        log.warning("transactions renumbered", floor=reach.floor)
    await insert_seal(tx, key, end, rows, reach)
    return len(rows)


async def select_rows_to_seal(tx: Tx, end: ChainEnd, batch: int) -> tuple[list[AuditRow], SealedRange]:
    """The rows to seal now, and what will be sealed with them.

    A restored database first seals what its earlier life left behind. Ids went on where they were, so from then on the
    highest sealed one keeps the lives apart, however their transactions are numbered.
    """
    reach = SealedRange(end.below, end.floor)
    rows = await list_unsealed_rows(tx, reach, batch, finished=end.is_restored)
    if not end.is_restored or len(rows) >= batch:
        return rows, advance_range(reach, rows)
    anew = SealedRange(0, max([await tx.value(Q.highest_sealed_row), *(row.id for row in rows)]))
    if rows:
        return rows, anew
    rows = await list_unsealed_rows(tx, anew, batch, finished=False)
    return rows, advance_range(anew, rows)


async def list_unsealed_rows(tx: Tx, sealed_range: SealedRange, batch: int, *, finished: bool) -> list[AuditRow]:
    return await tx.all(
        AuditRow, Q.unsealed_rows, below=sealed_range.below, floor=sealed_range.floor, finished=finished, batch=batch
    )


def advance_range(sealed_range: SealedRange, rows: list[AuditRow]) -> SealedRange:
    return SealedRange(rows[-1].xid + 1, sealed_range.floor) if rows else sealed_range


async def insert_seal(tx: Tx, key: Key, end: ChainEnd, rows: list[AuditRow], sealed_range: SealedRange) -> None:
    said = build_seal(key, end, rows, sealed_range)
    await tx.run(
        Q.insert_seal,
        previous=said.previous,
        first_id=said.first_id,
        last_id=said.last_id,
        count=said.count,
        ids=said.ids,
        macs=said.macs,
        below=said.below,
        floor=said.floor,
        key_id=said.key_id,
        moment=end.sealed_at,
        digest=seal_digest(key, said),
    )


def build_seal(key: Key, end: ChainEnd, rows: list[AuditRow], sealed_range: SealedRange) -> SealContent:
    ordered = sorted(rows, key=lambda row: row.id)
    return SealContent(
        previous=end.previous,
        first_id=ordered[0].id,
        last_id=ordered[-1].id,
        count=len(ordered),
        ids=[row.id for row in ordered],
        macs=b"".join(row_mac(key, row) for row in ordered),
        below=sealed_range.below,
        floor=sealed_range.floor,
        key_id=key.id,
        sealed=end.sealed,
    )
