"""Bounded scans: filter a long list newest first, reading a limited number of rows however rare the matches are."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar
from uuid import UUID

MAX_SCANNED_ROWS = 20_000
"""Rows that one scan reads at most."""
SCAN_GROWTH = 20
"""The factor by which a scan grows when it finds too few matches: common matches are found near the start."""

PageRow = TypeVar("PageRow")
ScanCursor = tuple[datetime, UUID]


@dataclass(frozen=True, slots=True)
class ScannedRow:
    """A row that a scan returned: a match, or the last row that it read."""

    id: UUID
    created_at: datetime
    is_match: bool
    is_scan_end: bool


@dataclass(frozen=True, slots=True)
class ScanPage(Generic[PageRow]):
    """The matches of one scan. `end` is where the next page starts, None if there are no older rows.

    `truncated` if the scan reached its row limit before the page was full.
    """

    rows: list[PageRow]
    end: ScannedRow | None
    truncated: bool


async def bounded_scan(
    scan: Callable[[int], Awaitable[Iterable[ScannedRow]]], limit: int, max_rows: int
) -> list[ScannedRow]:
    """Scan up to `max_rows` rows, in growing steps, until `limit` rows are known; newest first.

    `scan` takes the number of rows to read. It may read several indexes, each up to that number.
    """
    row_limit = min(limit, max_rows)
    while True:
        scanned = merge_scans(await scan(row_limit))[:limit]
        if row_limit == max_rows or len(scanned) == limit or not is_truncated(scanned):
            return scanned
        row_limit = min(row_limit * SCAN_GROWTH, max_rows)


def merge_scans(scanned: Iterable[ScannedRow]) -> list[ScannedRow]:
    """Merge the rows of several scans, newest first, up to the first place where one of them ended."""
    ordered = sorted(scanned, key=lambda row: (row.created_at, row.id), reverse=True)
    return ordered[: next((count for count, row in enumerate(ordered, 1) if row.is_scan_end), len(ordered))]


def is_truncated(scanned: Sequence[ScannedRow]) -> bool:
    return bool(scanned) and scanned[-1].is_scan_end


def make_scan_page(rows: list[PageRow], scanned: Sequence[ScannedRow], limit: int) -> ScanPage[PageRow]:
    full, truncated = len(scanned) == limit, is_truncated(scanned)
    return ScanPage(rows, scanned[-1] if full or truncated else None, truncated and not full)
