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
from pabal.db.channels import Channel
from pabal.db.errors import RetryableError
from pabal.db.pool import Database
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.queue.batcher import Batcher
from pabal.relay.metrics import RelayMetrics

Q = load_queries(__file__)
log = get_logger()

LANE_NAME = "relay"
LATE_REPLY_RETENTION = timedelta(minutes=30)
"""How long an answer that came too late may still be shown."""
SENDING_TIMEOUT = timedelta(seconds=30)
"""After this a POST's maker is gone: it had five seconds, and a few to write down the end."""
SENDING_TIMEOUT_ERROR = "whoever sent it did not come back to say what became of it"
MAX_SETTLE_ATTEMPTS = 5
SETTLE_RETRY_DELAY = 1.0
"""Seconds until the database is asked again to take an outcome down; all tries end well before `LOST`."""


class CallbackOutcome(StrEnum):
    """What became of a POST. Unsent: not one byte of it left."""

    SENT = "sent"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    UNSENT = "unsent"


@dataclass(frozen=True, slots=True)
class CallbackResult:
    """How a POST ended, and what Kakao said to it."""

    outcome: CallbackOutcome
    error: str | None = None
    status_code: int | None = None
    kakao_response: dict[str, Any] | None = field(default=None, repr=False)


PostCallback = Callable[[str, bytes], Awaitable[CallbackResult]]
"""Posts to a callback, once. How is none of our business."""


@dataclass(frozen=True, slots=True)
class ClaimedCallback:
    """A callback in our hands: nobody else will ever post to it. `late` goes in front of what is posted."""

    id: UUID
    message_id: UUID
    account_id: UUID
    fence: UUID
    url: str = field(repr=False)
    late_outputs: Sequence[dict[str, Any]] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class CallbackSettlement:
    """A callback and its end, to be written down."""

    callback: ClaimedCallback
    result: CallbackResult


@dataclass(frozen=True, slots=True)
class SettledCallbackRow:
    id: UUID
    settled_at_ms: int
    published: int


async def settle_callbacks(tx: Tx, settlements: Sequence[CallbackSettlement]) -> Sequence[int | None]:
    """Write ends down; for each the moment in epoch ms, or None if it was given up for lost meanwhile."""
    rows = await tx.all(
        SettledCallbackRow,
        Q.settle_callbacks,
        ids=[ended.callback.id for ended in settlements],
        accounts=[ended.callback.account_id for ended in settlements],
        fences=[ended.callback.fence for ended in settlements],
        outcomes=[ended.result.outcome for ended in settlements],
        codes=[ended.result.status_code for ended in settlements],
        kakaos=[
            json.dumps(ended.result.kakao_response) if ended.result.kakao_response else None for ended in settlements
        ],
        errors=[ended.result.error for ended in settlements],
        keep=LATE_REPLY_RETENTION,
    )
    if any(row.published for row in rows):
        tx.notify(Channel.EVENTS)
    at = {row.id: row.settled_at_ms for row in rows}
    tx.count_outcomes(
        LANE_NAME,
        "failed",
        sum(ended.result.outcome is not CallbackOutcome.SENT and ended.callback.id in at for ended in settlements),
    )
    return [at.get(ended.callback.id) for ended in settlements]


async def rescue_lost_callbacks(tx: Tx, batch: int) -> int:
    """Call unknown what nobody came back for: it may have been posted, so it is never posted again."""
    lost = await tx.column(Q.rescue_lost_callbacks, why=SENDING_TIMEOUT_ERROR, after=SENDING_TIMEOUT, batch=batch)
    tx.count_outcomes(LANE_NAME, "failed", len(lost))
    if lost:
        tx.notify(Channel.EVENTS)
    return len(lost)


class CallbackSender:
    """Posts to callbacks that were taken, and settles them."""

    def __init__(self, db: Database, post: PostCallback, metrics: RelayMetrics) -> None:
        self._post = post
        self._settlements = Batcher(db, settle_callbacks)
        self._metrics = metrics

    async def send(self, callback: ClaimedCallback, body: bytes) -> tuple[CallbackResult, int]:
        """Post, and write down the end: how it ended, and when."""
        posted = await self._post(callback.url, body)
        if posted.outcome is CallbackOutcome.SENT:
            self._metrics.callbacks_sent.add(1)
        else:
            self._metrics.callbacks_failed.add(1, posted.outcome)
            log.warning("callback failed", message=str(callback.message_id), outcome=posted.outcome, error=posted.error)
        return posted, await self._settle(CallbackSettlement(callback, posted))

    async def _settle(self, settlement: CallbackSettlement) -> int:
        """Write it down. Without a database for long it is found unknown later; what Kakao said is no less true."""
        for left in reversed(range(MAX_SETTLE_ATTEMPTS)):
            try:
                at = await self._settlements.put(settlement)
            except (Unavailable, RetryableError) as error:
                log.warning("callback unsettled", message=str(settlement.callback.message_id), error=str(error))
                if left:
                    await asyncio.sleep(SETTLE_RETRY_DELAY)
            else:
                return at or wall_clock_ms()
        return wall_clock_ms()

    async def close(self) -> None:
        await self._settlements.close()


def wall_clock_ms() -> int:
    """The host's own clock in epoch ms, for an answer that cannot wait for the database's."""
    return int(datetime.now(UTC).timestamp() * 1000)


FAILURE_WINDOW = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class FailingChannel:
    """A channel, and how many of its answers did not get through lately."""

    channel: str
    failed: int


async def list_failing_channels(tx: Tx, min_failures: int) -> list[FailingChannel]:
    """Channels with at least so many failed callbacks within the last ten minutes."""
    return await tx.all(FailingChannel, Q.list_failing_channels, span=FAILURE_WINDOW, least=min_failures)
