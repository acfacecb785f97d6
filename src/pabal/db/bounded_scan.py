"""Sight: what a look through a long list finds that goes so far and no further, however rare what it looks for is."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar
from uuid import UUID

MAX_SCANNED_ROWS = 20_000
"""Rows that one look goes through at most."""
SCAN_GROWTH = 20
"""How much further it goes each time it found too little: what is common is found near."""

PageRow = TypeVar("PageRow")
ScanCursor = tuple[datetime, UUID]


@dataclass(frozen=True, slots=True)
class ScannedRow:
    """A row that a look came by: one that was meant, or the last one it reached along its road."""

    id: UUID
    created_at: datetime
    is_match: bool
    is_scan_end: bool


@dataclass(frozen=True, slots=True)
class ScanPage(Generic[PageRow]):
    """What a look found. `end` is where to look on, unless there is nothing older; `tired` if it gave up there."""

    rows: list[PageRow]
    end: ScannedRow | None
    truncated: bool


async def bounded_scan(
    scan: Callable[[int], Awaitable[Iterable[ScannedRow]]], limit: int, max_rows: int
) -> list[ScannedRow]:
    """Look so many rows along every road, a little way first; what is known of `limit` rows, the newest first."""
    most = min(limit, max_rows)
    while True:
        seen = merge_scans(await scan(most))[:limit]
        if most == max_rows or len(seen) == limit or not is_truncated(seen):
            return seen
        most = min(most * SCAN_GROWTH, max_rows)


def merge_scans(seen: Iterable[ScannedRow]) -> list[ScannedRow]:
    """In their order, as far as every road was looked along: the first that ends ends them all."""
    ordered = sorted(seen, key=lambda each: (each.created_at, each.id), reverse=True)
    return ordered[: next((place for place, each in enumerate(ordered, 1) if each.is_scan_end), len(ordered))]


def is_truncated(seen: Sequence[ScannedRow]) -> bool:
    return bool(seen) and seen[-1].is_scan_end


def make_scan_page(rows: list[PageRow], seen: Sequence[ScannedRow], limit: int) -> ScanPage[PageRow]:
    full, tired = len(seen) == limit, is_truncated(seen)
    return ScanPage(rows, seen[-1] if full or tired else None, tired and not full)
