"""Walk the chain of seals and say where it breaks.

What is proven: a sealed row that was changed or removed, a row put in among sealed ones, a seal that was changed or
removed. What is not: what happened to a row before it was sealed, a second or so after its commit; a lie that was added
at the end like any other row; and seals cut off the end of the chain, unless the head was noted down somewhere else.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain

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
    """Something that is not as it was written, and where."""

    kind: BreakKind
    what: str
    seal: int | None = None
    row: int | None = None


@dataclass(slots=True)
class ChainBreaks:
    """All that was found: every one is counted, the first are kept."""

    count: int = 0
    first: list[ChainBreak] = field(default_factory=list[ChainBreak])

    def add(self, found: ChainBreak) -> None:
        self.count += 1
        if len(self.first) < MAX_KEPT_BREAKS:
            self.first.append(found)


class Seal(SealContent, frozen=True):
    """A seal as it is kept."""

    id: int
    digest: bytes

    def content(self) -> SealContent:
        return SealContent(*(getattr(self, name) for name in SealContent.__struct_fields__))

    def row_ids(self) -> list[int]:
        """The ids it names; none if somebody left a list that cannot be read."""
        return self.ids if {*map(type, self.ids)} == {int} and len(self.macs) == MAC_BYTES * len(self.ids) else []


@dataclass(frozen=True, slots=True)
class ChainHead:
    """A seal to recognise the chain by."""

    id: int
    digest: str

    def __str__(self) -> str:
        return f"{self.id}:{self.digest}"


class ChainVerifier:
    """Goes from seal to seal, from behind `after`. `below` and `floor` are what the last good one says."""

    def __init__(
        self, keyring: KeyRing, breaks: ChainBreaks, expected_head: ChainHead | None = None, after: Seal | None = None
    ) -> None:
        self._keyring = keyring
        self._breaks = breaks
        self._expected_head = expected_head
        self._expected_previous: set[bytes | None] = {after.digest if after else None}
        self._sealed_ids: dict[int, bytearray] = {}
        self._has_seal_break = False
        self.seals = self.rows = self.highest = 0
        self.below, self.floor = (after.below, after.floor) if after else (0, 0)
        self.head: ChainHead | None = None

    def check_seal(self, seal: Seal, rows: Mapping[int, AuditRow]) -> None:
        """Hold the next seal against the one before, and its rows against it."""
        self.seals += 1
        self.head = ChainHead(seal.id, seal.digest.hex())
        if self.head == self._expected_head:
            self._expected_head = None
        key = self._keyring.find(seal.key_id)
        made = seal_digest(key, seal.content()) if key else seal.digest
        if key is None:
            what = f"seal {seal.id} was made with key {seal.key_id}, which is not here: it cannot be checked"
            self._breaks.add(ChainBreak(BreakKind.KEY_UNKNOWN, what, seal.id))
        if made != seal.digest:
            self._has_seal_break = True
            self._breaks.add(ChainBreak(BreakKind.SEAL_CHANGED, f"seal {seal.id} is not as it was made", seal.id))
        else:
            self._check_link(seal)
            self.below, self.floor = seal.below, seal.floor
        self._expected_previous = {
            seal.digest,
            made,
        }  # a digest that was changed must not make the next seal look wrong as well
        self._check_sealed_rows(seal, key, rows)

    def finish(self) -> None:
        if self._expected_head:
            what = f"seal {self._expected_head} is not there: the chain was cut behind it, or made anew"
            self._breaks.add(ChainBreak(BreakKind.CHAIN_CUT, what, self._expected_head.id))

    def check_row(self, row_id: int, xid: int, next_xid: int) -> bool:
        """Take a row of the log; whether it is merely not sealed yet. One that should have been sealed is a break."""
        page = self._sealed_ids.get(row_id // BITMAP_PAGE_IDS)
        if page and page[row_id % BITMAP_PAGE_IDS // 8] >> row_id % 8 & 1:
            return False
        renumbered = next_xid < self.below  # a restored database that has sealed nothing yet
        if row_id > self.floor and (xid >= self.below or (renumbered and row_id > self.highest)):
            return True
        why = "its seal was changed or removed, or it was put in" if self._has_seal_break else "it was put in"
        what = f"row {row_id} is older than the seals and none names it: {why}"
        self._breaks.add(ChainBreak(BreakKind.ROW_ADDED, what, row=row_id))
        return False

    def _check_link(self, seal: Seal) -> None:
        if seal.previous in self._expected_previous:
            return
        self._has_seal_break = True
        what = f"the seal before seal {seal.id} is gone"
        self._breaks.add(ChainBreak(BreakKind.SEAL_REMOVED, what, seal.id))

    def _check_sealed_rows(self, seal: Seal, key: Key | None, rows: Mapping[int, AuditRow]) -> None:
        for place, row_id in enumerate(seal.row_ids()):
            self.rows += 1
            self.highest = max(self.highest, row_id)
            page = self._sealed_ids.setdefault(row_id // BITMAP_PAGE_IDS, bytearray(BITMAP_PAGE_IDS // 8))
            page[row_id % BITMAP_PAGE_IDS // 8] |= 1 << row_id % 8
            row = rows.get(row_id)
            if row is None:
                self._breaks.add(ChainBreak(BreakKind.ROW_REMOVED, f"row {row_id} is gone", seal.id, row_id))
            elif key and row_mac(key, row) != seal.macs[place * MAC_BYTES : (place + 1) * MAC_BYTES]:
                what = f"row {row_id} is not as it was sealed"
                self._breaks.add(ChainBreak(BreakKind.ROW_CHANGED, what, seal.id, row_id))


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


MAX_RECENT_SEALS = 5_000
MAX_RECENT_ROWS = 50_000


@dataclass(frozen=True, slots=True)
class RecentVerification:
    """What the walk found, and how many seals it left out: none means that all of the log was looked at."""

    report: VerifyReport
    skipped_seals: int


async def verify_recent_seals(
    tx: Tx, keyring: KeyRing, max_seals: int = MAX_RECENT_SEALS, max_rows: int = MAX_RECENT_ROWS
) -> RecentVerification:
    """Verify as many of the newest seals as hold `rows` rows, `seals` at most."""
    before = await tx.maybe(Seal, Q.seal_before_recent, seals=max_seals, rows=max_rows)
    if before is None:
        return RecentVerification(await verify_audit_log(tx, keyring), 0)
    highest = await tx.value(Q.highest_sealed_row, seal=before.id)
    found = await verify_audit_log(tx, keyring, start=VerifyStart(before, highest or MIN_ROW_ID))
    return RecentVerification(found, await tx.value(Q.count_skipped_seals, seal=before.id))
