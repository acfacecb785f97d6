"""One walk along the chain: what is held against what, without asking the database."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from pabal.audit.digest import MAC, Row, Said, digest, mac
from pabal.keys.key import Key
from pabal.keys.ring import Ring

SHOWN = 1000
PAGE = 1 << 16


class Kind(StrEnum):
    ROW_CHANGED = "row_changed"
    ROW_REMOVED = "row_removed"
    ROW_ADDED = "row_added"
    SEAL_CHANGED = "seal_changed"
    SEAL_REMOVED = "seal_removed"
    CHAIN_CUT = "chain_cut"
    KEY_UNKNOWN = "key_unknown"


@dataclass(frozen=True, slots=True)
class Break:
    """Something that is not as it was written, and where."""

    kind: Kind
    what: str
    seal: int | None = None
    row: int | None = None


@dataclass(slots=True)
class Breaks:
    """All that was found: every one is counted, the first are kept."""

    count: int = 0
    first: list[Break] = field(default_factory=list[Break])

    def add(self, found: Break) -> None:
        self.count += 1
        if len(self.first) < SHOWN:
            self.first.append(found)


class Seal(Said, frozen=True):
    """A seal as it is kept."""

    id: int
    digest: bytes

    def said(self) -> Said:
        return Said(*(getattr(self, name) for name in Said.__struct_fields__))

    def named(self) -> list[int]:
        """The ids it names; none if somebody left a list that cannot be read."""
        return self.ids if {*map(type, self.ids)} == {int} and len(self.macs) == MAC * len(self.ids) else []


@dataclass(frozen=True, slots=True)
class Head:
    """A seal to recognise the chain by."""

    id: int
    digest: str

    def __str__(self) -> str:
        return f"{self.id}:{self.digest}"


class Walk:
    """Goes from seal to seal, from behind `after`. `below` and `floor` are what the last good one says."""

    def __init__(self, keys: Ring, breaks: Breaks, noted: Head | None = None, after: Seal | None = None) -> None:
        self._keys = keys
        self._breaks = breaks
        self._noted = noted
        self._ends: set[bytes | None] = {after.digest if after else None}
        self._named: dict[int, bytearray] = {}
        self._doubt = False
        self.seals = self.rows = self.highest = 0
        self.below, self.floor = (after.below, after.floor) if after else (0, 0)
        self.head: Head | None = None

    def take(self, seal: Seal, rows: Mapping[int, Row]) -> None:
        """Hold the next seal against the one before, and its rows against it."""
        self.seals += 1
        self.head = Head(seal.id, seal.digest.hex())
        if self.head == self._noted:
            self._noted = None
        key = self._keys.find(seal.key_id)
        made = digest(key, seal.said()) if key else seal.digest
        if key is None:
            what = f"seal {seal.id} was made with key {seal.key_id}, which is not here: it cannot be checked"
            self._breaks.add(Break(Kind.KEY_UNKNOWN, what, seal.id))
        if made != seal.digest:
            self._doubt = True
            self._breaks.add(Break(Kind.SEAL_CHANGED, f"seal {seal.id} is not as it was made", seal.id))
        else:
            self._follow(seal)
            self.below, self.floor = seal.below, seal.floor
        self._ends = {seal.digest, made}  # a digest that was changed must not make the next seal look wrong as well
        self._compare(seal, key, rows)

    def finish(self) -> None:
        if self._noted:
            what = f"seal {self._noted} is not there: the chain was cut behind it, or made anew"
            self._breaks.add(Break(Kind.CHAIN_CUT, what, self._noted.id))

    def other(self, row_id: int, xid: int, next_xid: int) -> bool:
        """Take a row of the log; whether it is merely not sealed yet. One that should have been sealed is a break."""
        page = self._named.get(row_id // PAGE)
        if page and page[row_id % PAGE // 8] >> row_id % 8 & 1:
            return False
        renumbered = next_xid < self.below  # a restored database that has sealed nothing yet
        if row_id > self.floor and (xid >= self.below or (renumbered and row_id > self.highest)):
            return True
        why = "its seal was changed or removed, or it was put in" if self._doubt else "it was put in"
        what = f"row {row_id} is older than the seals and none names it: {why}"
        self._breaks.add(Break(Kind.ROW_ADDED, what, row=row_id))
        return False

    def _follow(self, seal: Seal) -> None:
        if seal.previous in self._ends:
            return
        self._doubt = True
        what = f"the seal before seal {seal.id} is gone"
        self._breaks.add(Break(Kind.SEAL_REMOVED, what, seal.id))

    def _compare(self, seal: Seal, key: Key | None, rows: Mapping[int, Row]) -> None:
        for place, row_id in enumerate(seal.named()):
            self.rows += 1
            self.highest = max(self.highest, row_id)
            page = self._named.setdefault(row_id // PAGE, bytearray(PAGE // 8))
            page[row_id % PAGE // 8] |= 1 << row_id % 8
            row = rows.get(row_id)
            if row is None:
                self._breaks.add(Break(Kind.ROW_REMOVED, f"row {row_id} is gone", seal.id, row_id))
            elif key and mac(key, row) != seal.macs[place * MAC : (place + 1) * MAC]:
                what = f"row {row_id} is not as it was sealed"
                self._breaks.add(Break(Kind.ROW_CHANGED, what, seal.id, row_id))
