"""`--since` and `--until`, the same for every list."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Protocol, TypeVar

from cyclopts import Parameter, Token

from pabal.core.duration import parse_duration
from pabal.core.ids import LOWEST_ID
from pabal.db.bounded_scan import ScanCursor, ScannedRow, ScanPage
from pabal.db.tx import Tx


def parse_time_option(_type: Any, tokens: Sequence[Token]) -> timedelta | datetime:
    """Parse a duration (how long ago) or a timestamp. A timestamp without an offset is local time."""
    text = tokens[0].value
    try:
        return parse_duration(text)
    except ValueError:
        try:
            return datetime.fromisoformat(text).astimezone()
        except ValueError:
            raise ValueError("must be a duration (90s, 15m, 2h, 7d) or a timestamp (2026-01-31T18:00)") from None


TimeOption = Annotated[
    timedelta | datetime | None,
    Parameter(converter=parse_time_option, n_tokens=1, accepts_keys=False, metavar="TIME"),
]


@dataclass(frozen=True, slots=True)
class TimeBounds:
    """A range of database time. `since` is inclusive, `until` exclusive."""

    since: datetime | None = None
    until: datetime | None = None

    def start(self, cursor: ScanCursor | None) -> ScanCursor | None:
        """Where a list that is ordered by time, newest first, begins."""
        return cursor or (None if self.until is None else (self.until, LOWEST_ID))

    def is_before(self, at: datetime) -> bool:
        return self.since is not None and at < self.since

    def is_after(self, at: datetime) -> bool:
        return self.until is not None and at >= self.until


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class TimeRange:
    """The time range of a list."""

    since: Annotated[TimeOption, Parameter(help="Not before: 15m (ago), 2h, 7d, or a timestamp.")] = None
    until: Annotated[TimeOption, Parameter(help="Before: 15m (ago), 2h, 7d, or a timestamp.")] = None

    async def bounds(self, tx: Tx) -> TimeBounds:
        """Convert to timestamps with the database's clock, which also wrote the rows."""
        if self == ANY_TIME:
            return TimeBounds()
        from pabal.events.dead_letters.dead_letters import database_now

        now = await database_now(tx)
        since, until = (now - time if isinstance(time, timedelta) else time for time in (self.since, self.until))
        return TimeBounds(since, until)


ANY_TIME = TimeRange()


class CreatedRow(Protocol):
    """A row that a time range applies to."""

    @property
    def created_at(self) -> datetime: ...


CreatedRowT = TypeVar("CreatedRowT", bound=CreatedRow)
ScanRows = Callable[[ScanCursor | None, int], Awaitable[ScanPage[CreatedRowT]]]


async def scan_range(
    scan: ScanRows[CreatedRowT], bounds: TimeBounds, cursor: ScanCursor | None, limit: int
) -> tuple[list[CreatedRowT], ScannedRow | None]:
    """Read the newest `limit` rows of the range, however many scans that takes, and the row where the page ends."""
    rows: list[CreatedRowT] = []
    start = bounds.start(cursor)
    while True:
        page = await scan(start, limit - len(rows))
        rows += [row for row in page.rows if not bounds.is_before(row.created_at)]
        if page.end is None or bounds.is_before(page.end.created_at):
            return rows, None
        if len(rows) >= limit:
            return rows, page.end
        start = page.end.created_at, page.end.id


@dataclass(frozen=True, slots=True)
class ListPage:
    """A page of a list and the cursor of the next one."""

    items: Sequence[Any]
    cursor: str | None


async def read_range(
    read_page: Callable[[str | None], Awaitable[Any]],
    bounds: TimeBounds,
    row_time: Callable[[Any], datetime],
    cursor: str | None,
) -> ListPage:
    """Read the first page with rows in the range, for lists whose cursor is not a timestamp."""
    while True:
        page = await read_page(cursor)
        rows = [row for row in page.items if not bounds.is_after(row_time(row))]
        if rows or page.cursor is None:
            inside = [row for row in rows if not bounds.is_before(row_time(row))]
            return ListPage(inside, page.cursor if len(inside) == len(rows) else None)
        cursor = page.cursor
