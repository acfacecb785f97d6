"""Tail: follow events as they come and as they end."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.events.events import like_pattern

Q = load_queries(__file__)

LOOKBACK = timedelta(seconds=5)
"""How far every look goes back. Transactions that stay open for longer are remembered, and looked for when they end."""
MAX_TRANSACTION_AGE = timedelta(hours=1)
"""Until they are forgotten: for as long it must be known what was seen."""
FOLLOW_PAGE_SIZE = 1000
MAX_UNFINISHED_EVENTS = 10_000
"""Events whose end is waited for; beyond that the oldest are let go."""
LOWEST_ID = UUID(int=0)


@dataclass(frozen=True, slots=True)
class FollowedEvent:
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
class EventChange:
    """An event that came, or that ended."""

    kind: Literal["came", "ended"]
    event: FollowedEvent


class EventFollower:
    """What one follower has seen so far. `event_type` may hold *; `service` is a source or a target."""

    def __init__(
        self, event_type: str | None = None, service: str | None = None, lookback: timedelta = LOOKBACK
    ) -> None:
        self._lookback = lookback
        self._criteria = {"event_type": like_pattern(event_type) if event_type else None, "service": service}
        self._seen: dict[UUID, datetime] = {}
        self._unfinished: dict[UUID, None] = {}
        self._last_created_at: datetime | None = None
        self._long_transactions: set[datetime] = set()

    async def start(self, tx: Tx) -> None:
        """From here on: what is there already is not told of, but its end will be."""
        self._last_created_at = await tx.value(Q.database_now)
        late = await list_long_transactions(tx, self._lookback)
        await self._poll_new(tx, late, late)
        self._unfinished = dict.fromkeys(
            await tx.column(Q.list_unfinished_event_ids, **self._criteria, limit=FOLLOW_PAGE_SIZE)
        )

    async def poll(self, tx: Tx) -> list[EventChange]:
        """What came and what ended since the last look."""
        late = await list_long_transactions(tx, self._lookback)
        came = await self._poll_new(tx, self._long_transactions - late, late)
        ended = await self._poll_ended(tx)
        told = [EventChange("came", row) for row in came]
        told += [
            EventChange("ended", row) for row in came if row.processed_at and not row.is_broadcast and row not in ended
        ]
        self._unfinished |= {row.id: None for row in came if not row.processed_at}
        for event in [*self._unfinished][: max(0, len(self._unfinished) - MAX_UNFINISHED_EVENTS)]:
            del self._unfinished[event]
        return told + [EventChange("ended", row) for row in ended]

    async def _poll_new(self, tx: Tx, back_to: set[datetime], late: set[datetime]) -> list[FollowedEvent]:
        assert self._last_created_at is not None
        came: list[FollowedEvent] = []
        at, row = min([self._last_created_at - self._lookback, *back_to]), LOWEST_ID
        while True:
            page = await tx.all(
                FollowedEvent, Q.list_new_events, **self._criteria, after=at, after_id=row, limit=FOLLOW_PAGE_SIZE
            )
            came += [each for each in page if each.id not in self._seen]
            self._seen |= {each.id: each.created_at for each in page}
            if len(page) < FOLLOW_PAGE_SIZE:
                break
            at, row = page[-1].created_at, page[-1].id
        self._last_created_at, self._long_transactions = (
            max([self._last_created_at, *(each.created_at for each in came)]),
            late,
        )
        oldest = min([self._last_created_at - self._lookback, *late])
        self._seen = {event: at for event, at in self._seen.items() if at >= oldest}
        return came

    async def _poll_ended(self, tx: Tx) -> list[FollowedEvent]:
        if not self._unfinished:
            return []
        there = await tx.all(FollowedEvent, Q.list_followed_events, ids=[*self._unfinished])
        self._unfinished = {row.id: None for row in there if not row.processed_at}  # what was deleted is forgotten
        return [row for row in there if row.processed_at]


async def list_long_transactions(tx: Tx, min_age: timedelta) -> set[datetime]:
    """When the transactions began that are open for long: their events may yet come, with an old time."""
    return {*await tx.column(Q.list_long_transactions, slack=min_age, longest=MAX_TRANSACTION_AGE)}
