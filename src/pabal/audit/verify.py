"""Verify the chain of seals.

Detected: a sealed row that was changed or removed, a row inserted among sealed ones, a seal that was changed or
removed. Seals removed from the end of the chain, or all of them, are detected by a head that was stored elsewhere: in
the file of a host, or by an operator. Not detected: changes to a row before it was sealed, about a second after its
commit, and a false row added at the end.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain

from pabal.audit.chain_head import START_OF_CHAIN, ChainHead
from pabal.audit.seal import MAC_BYTES, AuditRow, SealContent, row_mac, seal_digest
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.keys.key import Key
from pabal.keys.keyring import KeyRing

MAX_KEPT_BREAKS = 1000
BITMAP_PAGE_IDS = 1 << 16


class BreakKind(StrEnum):
    ROW_CHANGED = "row_changed"
    ROW_REMOVED = "row_removed"
    ROW_ADDED = "row_added"
    SEAL_CHANGED = "seal_changed"
    SEAL_REMOVED = "seal_removed"
    CHAIN_CUT = "chain_cut"
    KEY_UNKNOWN = "key_unknown"


@dataclass(frozen=True, slots=True)
class ChainBreak:
    """A row or seal that is not as it was written."""

    kind: BreakKind
    what: str
    seal: int | None = None
    row: int | None = None


@dataclass(slots=True)
class ChainBreaks:
    """The breaks that were found. All are counted, the first ones are kept."""

    count: int = 0
    first: list[ChainBreak] = field(default_factory=list[ChainBreak])

    def add(self, chain_break: ChainBreak) -> None:
        self.count += 1
        if len(self.first) < MAX_KEPT_BREAKS:
            self.first.append(chain_break)


class Seal(SealContent, frozen=True):
    """A stored seal."""

    id: int
    digest: bytes

    def content(self) -> SealContent:
        return SealContent(*(getattr(self, name) for name in SealContent.__struct_fields__))

    @property
    def head(self) -> ChainHead:
        return ChainHead(self.id, self.digest.hex(), self.count)

    def row_ids(self) -> list[int]:
        """The ids of its rows; empty if the list was tampered with and cannot be read."""
        return self.ids if {*map(type, self.ids)} == {int} and len(self.macs) == MAC_BYTES * len(self.ids) else []


class ChainVerifier:
    """Checks seal by seal, starting after `after`. `below` and `floor` are those of the last valid seal."""

    def __init__(
        self, keyring: KeyRing, breaks: ChainBreaks, expected_heads: Collection[ChainHead], after: Seal | None = None
    ) -> None:
        self._keyring = keyring
        self._breaks = breaks
        self._expected_heads = {*expected_heads} - {START_OF_CHAIN}
        self._expected_previous: set[bytes | None] = {after.digest if after else None}
        self._sealed_ids: dict[int, bytearray] = {}
        self._has_seal_break = False
        self.seals = self.rows = self.highest = 0
        self.below, self.floor = (after.below, after.floor) if after else (0, 0)
        self.head: ChainHead | None = None

    def check_seal(self, seal: Seal, rows: Mapping[int, AuditRow]) -> None:
        """Check the next seal against the previous one, and its rows against the seal."""
        self.seals += 1
        self.head = seal.head
        self._expected_heads -= {head for head in self._expected_heads if head.matches(seal.head)}
        key = self._keyring.find(seal.key_id)
        computed = seal_digest(key, seal.content()) if key else seal.digest
        if key is None:
            what = f"seal {seal.id} cannot be checked: its key {seal.key_id} is unknown"
            self._breaks.add(ChainBreak(BreakKind.KEY_UNKNOWN, what, seal.id))
        if computed != seal.digest:
            self._has_seal_break = True
            self._breaks.add(ChainBreak(BreakKind.SEAL_CHANGED, f"seal {seal.id} was changed", seal.id))
        else:
            self._check_link(seal)
            self.below, self.floor = seal.below, seal.floor
        self._expected_previous = {seal.digest, computed}  # do not report a changed digest for the next seal as well
        self._check_sealed_rows(seal, key, rows)

    def finish(self) -> None:
        for head in sorted(self._expected_heads, key=lambda head: head.id):
            what = f"seal {head} is missing: the chain was cut or replaced, or an older backup was restored"
            self._breaks.add(ChainBreak(BreakKind.CHAIN_CUT, what, head.id))

    def check_row(self, row_id: int, xid: int, next_xid: int) -> bool:
        """Check that a row is sealed. Returns True if it is not sealed yet; a row that should be sealed is a break."""
        page = self._sealed_ids.get(row_id // BITMAP_PAGE_IDS)
        if page and page[row_id % BITMAP_PAGE_IDS // 8] >> row_id % 8 & 1:
            return False
        renumbered = next_xid < self.below  # a restored database that has sealed nothing yet
        if row_id > self.floor and (xid >= self.below or (renumbered and row_id > self.highest)):
            return True
        cause = "it was inserted later"
        if self._has_seal_break:
            cause = "its seal was changed or removed, or it was inserted"
        what = f"row {row_id} is older than the seals but not sealed: {cause}"
        self._breaks.add(ChainBreak(BreakKind.ROW_ADDED, what, row=row_id))
        return False

    def _check_link(self, seal: Seal) -> None:
        if seal.previous in self._expected_previous:
            return
        self._has_seal_break = True
        what = f"the seal before seal {seal.id} was removed"
        self._breaks.add(ChainBreak(BreakKind.SEAL_REMOVED, what, seal.id))

    def _check_sealed_rows(self, seal: Seal, key: Key | None, rows: Mapping[int, AuditRow]) -> None:
        for position, row_id in enumerate(seal.row_ids()):
            self.rows += 1
            self.highest = max(self.highest, row_id)
            page = self._sealed_ids.setdefault(row_id // BITMAP_PAGE_IDS, bytearray(BITMAP_PAGE_IDS // 8))
            page[row_id % BITMAP_PAGE_IDS // 8] |= 1 << row_id % 8
            row = rows.get(row_id)
            if row is None:
                self._breaks.add(ChainBreak(BreakKind.ROW_REMOVED, f"row {row_id} was removed", seal.id, row_id))
            elif key and row_mac(key, row) != seal.macs[position * MAC_BYTES : (position + 1) * MAC_BYTES]:
                what = f"row {row_id} was changed"
                self._breaks.add(ChainBreak(BreakKind.ROW_CHANGED, what, seal.id, row_id))


Q = load_queries(__file__)

SEALS_PER_BATCH = 200
ROWS_PER_BATCH = 5000
MIN_ROW_ID = -(1 << 63)  # ids are positive, but a tampered row may have any


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of a verification. Store `head` where writers of the database cannot change it."""

    seals: int
    rows: int
    unsealed: int
    head: ChainHead | None
    ahead: int
    """How many seals are missing after the last one; more than 0 after a crash or if the chain was cut."""
    broken: int
    breaks: tuple[ChainBreak, ...]
    """The first breaks; `broken` counts all."""


@dataclass(frozen=True, slots=True)
class ServerCounters:
    """The next transaction id and the number of seals, from the server's own counters."""

    next_xid: int
    seals: int


@dataclass(frozen=True, slots=True)
class AuditRowId:
    id: int
    xid: int


@dataclass(frozen=True, slots=True)
class VerifyStart:
    """Where a verification starts: after a seal, and for unsealed rows after the last row sealed by then."""

    seal: Seal | None = None
    row: int = MIN_ROW_ID


FROM_THE_BEGINNING = VerifyStart()


async def list_seals(tx: Tx, after: int, limit: int) -> list[Seal]:
    """The seals after an id, in the order of the chain."""
    return await tx.all(Seal, Q.list_seals, after=after, limit=limit)


async def verify_audit_log(
    tx: Tx, keyring: KeyRing, expected_heads: Collection[ChainHead] = (), start: VerifyStart = FROM_THE_BEGINNING
) -> VerifyReport:
    """Check every seal against the previous one, every sealed row against its seal, and every row for a seal.

    The chain must contain `expected_heads`. Rows are read in batches; memory holds one bit per row.
    """
    counters = await tx.one(ServerCounters, Q.server_counters)
    breaks = ChainBreaks()
    verifier = ChainVerifier(keyring, breaks, expected_heads, start.seal)
    after = start.seal.id if start.seal else MIN_ROW_ID
    while seals := await list_seals(tx, after, SEALS_PER_BATCH):
        for group in batch_seals(seals):
            ids = [*chain.from_iterable(seal.row_ids() for seal in group)]
            rows = {row.id: row for row in await tx.all(AuditRow, Q.list_rows, ids=ids)}
            for seal in group:
                verifier.check_seal(seal, rows)
        after = seals[-1].id
    verifier.finish()
    unsealed, after = 0, start.row
    while row_ids := await tx.all(AuditRowId, Q.list_row_ids, after=after, limit=ROWS_PER_BATCH):
        unsealed += sum(verifier.check_row(row.id, row.xid, counters.next_xid) for row in row_ids)
        after = row_ids[-1].id
    ahead = max(0, counters.seals - (verifier.head.id if verifier.head else 0))
    return VerifyReport(
        verifier.seals, verifier.rows, unsealed, verifier.head, ahead, breaks.count, tuple(breaks.first)
    )


def batch_seals(seals: list[Seal]) -> Iterator[list[Seal]]:
    """Group seals so that the rows of a group fit in memory."""
    group: list[Seal] = []
    rows = 0
    for seal in seals:
        if group and rows + len(seal.ids) > ROWS_PER_BATCH:
            yield group
            group, rows = [], 0
        group.append(seal)
        rows += len(seal.ids)
    yield group


MAX_RECENT_SEALS = 5_000
MAX_RECENT_ROWS = 50_000


@dataclass(frozen=True, slots=True)
class RecentVerification:
    """The result of a partial verification; `skipped_seals` is 0 if the whole log was verified."""

    report: VerifyReport
    skipped_seals: int


async def verify_recent_seals(
    tx: Tx,
    keyring: KeyRing,
    max_seals: int = MAX_RECENT_SEALS,
    max_rows: int = MAX_RECENT_ROWS,
    expected_heads: Collection[ChainHead] = (),
) -> RecentVerification:
    """Verify the newest seals: at most `max_seals`, with about `max_rows` rows.

    Of the skipped seals, only the first one and `expected_heads` are looked up.
    """
    before = await tx.maybe(Seal, Q.seal_before_recent, seals=max_seals, rows=max_rows)
    if before is None:
        return RecentVerification(await verify_audit_log(tx, keyring, expected_heads), 0)
    highest = await tx.value(Q.highest_sealed_row, seal=before.id)
    skipped_heads = {*await tx.all(ChainHead, Q.list_heads, ids=[head.id for head in expected_heads])}
    heads = [head for head in expected_heads if head.id > before.id or not any(map(head.matches, skipped_heads))]
    report = await verify_audit_log(tx, keyring, heads, VerifyStart(before, highest or MIN_ROW_ID))
    if (first := await tx.value(Q.first_seal_with_previous)) is not None:
        missing = ChainBreak(BreakKind.SEAL_REMOVED, f"the seal before seal {first} was removed", first)
        report = replace(report, broken=report.broken + 1, breaks=(missing, *report.breaks))
    return RecentVerification(report, await tx.value(Q.count_skipped_seals, seal=before.id))
