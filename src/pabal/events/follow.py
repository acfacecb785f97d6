"""Follow events as they are published and as they finish."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

from pabal.core.ids import LOWEST_ID
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.events.events import like_pattern
from pabal.events.types import EventStatus

Q = load_queries(__file__)

LOOKBACK = timedelta(seconds=5)
"""How far each poll reads back. Transactions that are open for longer are remembered and read again when they end."""
MAX_TRANSACTION_AGE = timedelta(hours=1)
"""Ignore older transactions: the ids of seen events are kept for as long."""
FOLLOW_PAGE_SIZE = 1000
MAX_UNFINISHED_EVENTS = 10_000
"""Wait for the end of at most this many events; beyond that, drop the oldest."""


@dataclass(frozen=True, slots=True)
class FollowedEvent:
    """The fields of an event that a follower prints."""

    id: UUID
    event_type: str
    source_service: str
    target_service: str | None
    status: EventStatus
    retry_count: int
    created_at: datetime
    processed_at: datetime | None
    last_error: str | None
    parent_id: UUID | None
    is_broadcast: bool


@dataclass(frozen=True, slots=True)
class EventChange:
    """An event was published (`came`) or has finished (`ended`)."""

    kind: Literal["came", "ended"]
    event: FollowedEvent


class EventFollower:
    """Polls for changes. `event_type` may contain `*`; `service` matches the source or the target."""

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
        """Begin here. Events that exist already are reported only when they finish."""
        self._last_created_at = await tx.value(Q.database_now)
        long_transactions = await list_long_transactions(tx, self._lookback)
        await self._poll_new(tx, long_transactions, long_transactions)
        self._unfinished = dict.fromkeys(
            await tx.column(Q.list_unfinished_event_ids, **self._criteria, limit=FOLLOW_PAGE_SIZE)
        )

    async def poll(self, tx: Tx) -> list[EventChange]:
        """Return the events published and finished since the last poll."""
        long_transactions = await list_long_transactions(tx, self._lookback)
        new = await self._poll_new(tx, self._long_transactions - long_transactions, long_transactions)
        finished = await self._poll_finished(tx)
        changes = [EventChange("came", event) for event in new]
        changes += [
            EventChange("ended", event)
            for event in new
            if event.processed_at and not event.is_broadcast and event not in finished
        ]
        self._unfinished |= {event.id: None for event in new if not event.processed_at}
        for event_id in [*self._unfinished][: max(0, len(self._unfinished) - MAX_UNFINISHED_EVENTS)]:
            del self._unfinished[event_id]
        return changes + [EventChange("ended", event) for event in finished]

    async def _poll_new(
        self, tx: Tx, ended_transactions: set[datetime], long_transactions: set[datetime]
    ) -> list[FollowedEvent]:
        """Read the events published since the last poll, and those of long transactions that have ended meanwhile."""
        assert self._last_created_at is not None
        new: list[FollowedEvent] = []
        created_at, event_id = min([self._last_created_at - self._lookback, *ended_transactions]), LOWEST_ID
        while True:
            page = await tx.all(
                FollowedEvent,
                Q.list_new_events,
                **self._criteria,
                after=created_at,
                after_id=event_id,
                limit=FOLLOW_PAGE_SIZE,
            )
            new += [event for event in page if event.id not in self._seen]
            self._seen |= {event.id: event.created_at for event in page}
            if len(page) < FOLLOW_PAGE_SIZE:
                break
            created_at, event_id = page[-1].created_at, page[-1].id
        self._last_created_at = max([self._last_created_at, *(event.created_at for event in new)])
        self._long_transactions = long_transactions
        oldest = min([self._last_created_at - self._lookback, *long_transactions])
        self._seen = {seen_id: seen_at for seen_id, seen_at in self._seen.items() if seen_at >= oldest}
        return new

    async def _poll_finished(self, tx: Tx) -> list[FollowedEvent]:
        if not self._unfinished:
            return []
        events = await tx.all(FollowedEvent, Q.list_followed_events, ids=[*self._unfinished])
        self._unfinished = {event.id: None for event in events if not event.processed_at}  # drops deleted events too
        return [event for event in events if event.processed_at]


async def list_long_transactions(tx: Tx, min_age: timedelta) -> set[datetime]:
    """Return the start times of transactions open for longer than `min_age`: they may commit events dated back then."""
    return {*await tx.column(Q.list_long_transactions, min_age=min_age, max_age=MAX_TRANSACTION_AGE)}
