"""Seal audit rows so that tampering is detected: a chain of HMACs whose key is not in the database.

Writers do not wait: rows are sealed a moment later, once all transactions that started before them have ended, so that
no row can appear among sealed ones. Until then, only grants and triggers protect a row.
"""

import hmac
from dataclasses import dataclass
from datetime import datetime

import msgspec

from pabal.audit.chain_head import ChainHead
from pabal.core.log import get_logger
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.keys.key import Key

MAC_BYTES = 8
"""Bytes stored per row, to tell which row changed. The seal's full digest covers all of them."""


class AuditRow(msgspec.Struct, frozen=True, array_like=True):
    """A row of the log with all columns."""

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
    """The content that a seal's digest covers."""

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
    """The last seal of the chain, and the time of the next one."""

    previous: bytes | None
    below: int
    floor: int
    is_restored: bool
    """Whether transaction ids are lower than in the chain, because the database was restored on another server."""
    sealed_at: datetime
    sealed: str


@dataclass(frozen=True, slots=True)
class SealedRange:
    """What is sealed: all rows with ids up to `floor`, and above it all rows of transactions older than `below`."""

    below: int
    floor: int


async def seal_audit_log(tx: Tx, key: Key, batch: int, *, after_restore: bool = False) -> ChainHead | None:
    """Seal about `batch` rows, without splitting the rows of a transaction; returns the new head, if any.

    Of two concurrent calls one fails, because a seal can have only one successor. `after_restore`: an operator said
    that the database was restored, so new rows may have lower transaction ids than the chain, and the server no longer.
    """
    end = await tx.one(ChainEnd, Q.chain_end)
    if after_restore and not end.is_restored and (renumbered := await find_renumbered_range(tx, end)):
        rows = await list_unsealed_rows(tx, renumbered, batch, finished=False)
        sealed_range = advance_range(renumbered, rows)
    else:
        rows, sealed_range = await select_rows_to_seal(tx, end, batch)
    if not rows:
        return None
    if sealed_range.floor != end.floor:
        log.warning("transactions renumbered", floor=sealed_range.floor)
    return await insert_seal(tx, key, end, rows, sealed_range)


async def select_rows_to_seal(tx: Tx, end: ChainEnd, batch: int) -> tuple[list[AuditRow], SealedRange]:
    """The rows to seal now, and the range that is sealed afterwards.

    After a restore, the rows from before it are sealed first. Row ids continue, so from then on the highest sealed id
    (`floor`) separates the two numberings of transactions.
    """
    sealed_range = SealedRange(end.below, end.floor)
    rows = await list_unsealed_rows(tx, sealed_range, batch, finished=end.is_restored)
    if not end.is_restored or len(rows) >= batch:
        return rows, advance_range(sealed_range, rows)
    new_range = SealedRange(0, max([await tx.value(Q.highest_sealed_row), *(row.id for row in rows)]))
    if rows:
        return rows, new_range
    rows = await list_unsealed_rows(tx, new_range, batch, finished=False)
    return rows, advance_range(new_range, rows)


async def find_renumbered_range(tx: Tx, end: ChainEnd) -> SealedRange | None:
    """The range above all sealed ids, if it has rows of transactions that the chain takes for older than itself."""
    sealed_range = SealedRange(0, max(await tx.value(Q.highest_sealed_row) or 0, end.floor))
    has_rows = await tx.value(Q.has_renumbered_rows, floor=sealed_range.floor, below=end.below)
    return sealed_range if has_rows else None


async def list_unsealed_rows(tx: Tx, sealed_range: SealedRange, batch: int, *, finished: bool) -> list[AuditRow]:
    return await tx.all(
        AuditRow, Q.unsealed_rows, below=sealed_range.below, floor=sealed_range.floor, finished=finished, batch=batch
    )


def advance_range(sealed_range: SealedRange, rows: list[AuditRow]) -> SealedRange:
    return SealedRange(rows[-1].xid + 1, sealed_range.floor) if rows else sealed_range


async def insert_seal(tx: Tx, key: Key, end: ChainEnd, rows: list[AuditRow], sealed_range: SealedRange) -> ChainHead:
    seal = build_seal(key, end, rows, sealed_range)
    digest = seal_digest(key, seal)
    seal_id = await tx.value(
        Q.insert_seal,
        previous=seal.previous,
        first_id=seal.first_id,
        last_id=seal.last_id,
        count=seal.count,
        ids=seal.ids,
        macs=seal.macs,
        below=seal.below,
        floor=seal.floor,
        key_id=seal.key_id,
        sealed_at=end.sealed_at,
        digest=digest,
    )
    return ChainHead(seal_id, digest.hex(), seal.count)


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
