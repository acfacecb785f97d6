"""One walk along the chain: what is held against what, without asking the database."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from pabal.audit.digest import MAC_BYTES, AuditRow, SealContent, row_mac, seal_digest
from pabal.keys.key import Key
from pabal.keys.ring import KeyRing

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
