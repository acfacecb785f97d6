"""A callback that was taken: one POST, and what became of it written down by whoever holds its fence."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from pabal.core.errors import Unavailable
from pabal.core.log import get_logger
from pabal.db.bells import Bell
from pabal.db.faults import Contended
from pabal.db.pool import Database
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.queue.gatherer import Gatherer
from pabal.relay.figures import Figures

Q = beside(__file__)
log = get_logger()

LANE_NAME = "relay"
KEEP = timedelta(minutes=30)
"""How long an answer that came too late may still be shown."""
LOST = timedelta(seconds=30)
"""After this a POST's maker is gone: it had five seconds, and a few to write down the end."""
LOST_WHY = "whoever sent it did not come back to say what became of it"
TRIES = 5
PAUSE = 1.0
"""Seconds until the database is asked again to take an outcome down; all tries end well before `LOST`."""


class Ending(StrEnum):
    """What became of a POST. Unsent: not one byte of it left."""

    SENT = "sent"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    UNSENT = "unsent"


@dataclass(frozen=True, slots=True)
class Posted:
    """How a POST ended, and what Kakao said to it."""

    ending: Ending
    why: str | None = None
    status_code: int | None = None
    kakao: dict[str, Any] | None = field(default=None, repr=False)


Post = Callable[[str, bytes], Awaitable[Posted]]
"""Posts to a callback, once. How is none of our business."""


@dataclass(frozen=True, slots=True)
class Spent:
    """A callback in our hands: nobody else will ever post to it. `late` goes in front of what is posted."""

    id: UUID
    message_id: UUID
    account_id: UUID
    fence: UUID
    url: str = field(repr=False)
    late: Sequence[dict[str, Any]] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Ended:
    """A callback and its end, to be written down."""

    spent: Spent
    posted: Posted


@dataclass(frozen=True, slots=True)
class Settled:
    id: UUID
    at: int
    told: int


async def settle(tx: Tx, group: Sequence[Ended]) -> Sequence[int | None]:
    """Write ends down; for each the moment in epoch ms, or None if it was given up for lost meanwhile."""
    rows = await tx.all(
        Settled,
        Q.settle,
        ids=[ended.spent.id for ended in group],
        accounts=[ended.spent.account_id for ended in group],
        fences=[ended.spent.fence for ended in group],
        outcomes=[ended.posted.ending for ended in group],
        codes=[ended.posted.status_code for ended in group],
        kakaos=[json.dumps(ended.posted.kakao) if ended.posted.kakao else None for ended in group],
        errors=[ended.posted.why for ended in group],
        keep=KEEP,
    )
    if any(row.told for row in rows):
        tx.ring(Bell.EVENTS)
    at = {row.id: row.at for row in rows}
    tx.count(
        LANE_NAME, "failed", sum(ended.posted.ending is not Ending.SENT and ended.spent.id in at for ended in group)
    )
    return [at.get(ended.spent.id) for ended in group]


async def rescue(tx: Tx, batch: int) -> int:
    """Call unknown what nobody came back for: it may have been posted, so it is never posted again."""
    lost = await tx.column(Q.rescue, why=LOST_WHY, after=LOST, batch=batch)
    tx.count(LANE_NAME, "failed", len(lost))
    if lost:
        tx.ring(Bell.EVENTS)
    return len(lost)


class Callbacks:
    """Posts to callbacks that were taken, and settles them."""

    def __init__(self, db: Database, post: Post, figures: Figures) -> None:
        self._post = post
        self._settling = Gatherer(db, settle)
        self._figures = figures

    async def send(self, spent: Spent, body: bytes) -> tuple[Posted, int]:
        """Post, and write down the end: how it ended, and when."""
        posted = await self._post(spent.url, body)
        if posted.ending is Ending.SENT:
            self._figures.sent.add(1)
        else:
            self._figures.failed.add(1, posted.ending)
            log.warning("callback failed", message=str(spent.message_id), outcome=posted.ending, why=posted.why)
        return posted, await self._settle(Ended(spent, posted))

    async def _settle(self, ended: Ended) -> int:
        """Write it down. Without a database for long it is found unknown later; what Kakao said is no less true."""
        for left in reversed(range(TRIES)):
            try:
                at = await self._settling.put(ended)
            except (Unavailable, Contended) as error:
                log.warning("callback unsettled", message=str(ended.spent.message_id), why=str(error))
                if left:
                    await asyncio.sleep(PAUSE)
            else:
                return at or here()
        return here()

    async def close(self) -> None:
        await self._settling.close()


def here() -> int:
    """The host's own clock in epoch ms, for an answer that cannot wait for the database's."""
    return int(datetime.now(UTC).timestamp() * 1000)
