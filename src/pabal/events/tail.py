"""Tail: follow events as they come and as they end."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.events.read import as_like

Q = beside(__file__)

SLACK = timedelta(seconds=5)
"""How far every look goes back. Transactions that stay open for longer are remembered, and looked for when they end."""
LONGEST = timedelta(hours=1)
"""Until they are forgotten: for as long it must be known what was seen."""
PAGE = 1000
MOST = 10_000
"""Events whose end is waited for; beyond that the oldest are let go."""
FIRST = UUID(int=0)


@dataclass(frozen=True, slots=True)
class Row:
    """As much of an event as a line about it says."""

    id: UUID
    event_type: str
    source_service: str
    target_service: str | None
    status: str
    retry_count: int
    created_at: datetime
    processed_at: datetime | None
    last_error: str | None
    parent_id: UUID | None
    is_broadcast: bool


@dataclass(frozen=True, slots=True)
class Sighting:
    """An event that came, or that ended."""

    what: Literal["came", "ended"]
    event: Row


class Tail:
    """What one follower has seen so far. `event_type` may hold *; `service` is a source or a target."""

    def __init__(self, event_type: str | None = None, service: str | None = None, slack: timedelta = SLACK) -> None:
        self._slack = slack
        self._chosen = {"event_type": as_like(event_type) if event_type else None, "service": service}
        self._seen: dict[UUID, datetime] = {}
        self._open: dict[UUID, None] = {}
        self._last: datetime | None = None
        self._late: set[datetime] = set()

    async def begin(self, tx: Tx) -> None:
        """From here on: what is there already is not told of, but its end will be."""
        self._last = await tx.value(Q.now)
        late = await late_ones(tx, self._slack)
        await self._came(tx, late, late)
        self._open = dict.fromkeys(await tx.column(Q.open, **self._chosen, limit=PAGE))

    async def look(self, tx: Tx) -> list[Sighting]:
        """What came and what ended since the last look."""
        late = await late_ones(tx, self._slack)
        came = await self._came(tx, self._late - late, late)
        ended = await self._ended(tx)
        told = [Sighting("came", row) for row in came]
        told += [
            Sighting("ended", row) for row in came if row.processed_at and not row.is_broadcast and row not in ended
        ]
        self._open |= {row.id: None for row in came if not row.processed_at}
        for event in [*self._open][: max(0, len(self._open) - MOST)]:
            del self._open[event]
        return told + [Sighting("ended", row) for row in ended]

    async def _came(self, tx: Tx, back_to: set[datetime], late: set[datetime]) -> list[Row]:
        assert self._last is not None
        came: list[Row] = []
        at, row = min([self._last - self._slack, *back_to]), FIRST
        while True:
            page = await tx.all(Row, Q.came, **self._chosen, after=at, after_id=row, limit=PAGE)
            came += [each for each in page if each.id not in self._seen]
            self._seen |= {each.id: each.created_at for each in page}
            if len(page) < PAGE:
                break
            at, row = page[-1].created_at, page[-1].id
        self._last, self._late = max([self._last, *(each.created_at for each in came)]), late
        oldest = min([self._last - self._slack, *late])
        self._seen = {event: at for event, at in self._seen.items() if at >= oldest}
        return came

    async def _ended(self, tx: Tx) -> list[Row]:
        if not self._open:
            return []
        there = await tx.all(Row, Q.these, ids=[*self._open])
        self._open = {row.id: None for row in there if not row.processed_at}  # what was deleted is forgotten
        return [row for row in there if row.processed_at]


async def late_ones(tx: Tx, slack: timedelta) -> set[datetime]:
    """When the transactions began that are open for long: their events may yet come, with an old time."""
    return {*await tx.column(Q.late, slack=slack, longest=LONGEST)}
