"""Recall callbacks: a message whose webhook got another answer is left without its callback."""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from time import monotonic
from typing import Any

from pabal.core.errors import PabalError, RequestError, Unavailable
from pabal.core.log import get_logger
from pabal.db.doorbell.channels import Channel
from pabal.db.pool import Database
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.relay.webhook.payload import InboundPayload

Q = load_queries(__file__)
log = get_logger()

MAX_PENDING_RECALLS = 1000
"""Beyond this many pending recalls, new webhooks are not stored, so they need no recall."""
KAKAO_CALLBACK_LIFETIME = timedelta(seconds=60)
"""Kakao accepts nothing after this, so older recalls are dropped."""
RECALL_RETRY_DELAY = 1.0
"""Seconds between attempts while the database is unavailable."""


@dataclass(frozen=True, slots=True)
class VoidedCallback:
    """A callback that Kakao no longer accepts, of a message that may be stored. Dropped at `deadline` (monotonic)."""

    conversation_key: str
    channel: str
    source_event_id: str
    deadline: float


async def void_callbacks(tx: Tx, callbacks: Sequence[VoidedCallback]) -> None:
    """Remove the callbacks of these messages. A reply to one of them becomes a late reply."""
    changed = await tx.column(
        Q.void_callbacks,
        conversations=[callback.conversation_key for callback in callbacks],
        channels=[callback.channel for callback in callbacks],
        source_events=[callback.source_event_id for callback in callbacks],
    )
    for account in {*changed}:
        tx.notify(Channel.MESSAGES, str(account))  # a claim that met our row locks skipped the messages


def is_certainly_not_stored(error: BaseException | None) -> bool:
    """Whether storing a webhook failed before anything reached the database, so that there is nothing to recall."""
    return isinstance(error, RequestError) or (isinstance(error, Unavailable) and error.nothing_sent)


class CallbackRecaller:
    """Recalls callbacks in the background, many in one statement, as soon as the database is available.

    Memory stays bounded during an outage: there are at most `MAX_PENDING_RECALLS` entries, each only a few keys, and
    none outlives its callback.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._pending: set[asyncio.Future[Any]] = set()
        self._voided: deque[VoidedCallback] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._pending) + len(self._voided)

    @property
    def is_full(self) -> bool:
        return len(self) >= MAX_PENDING_RECALLS

    def recall(self, payload: InboundPayload, pending: "asyncio.Future[Any]") -> None:
        """Recall a webhook's callback after `pending`, which stores the webhook, has ended."""
        callback = VoidedCallback(
            payload.conversation_key,
            payload.channel,
            payload.source_event_id,
            monotonic() + KAKAO_CALLBACK_LIFETIME.total_seconds(),
        )
        self._pending.add(pending)
        pending.add_done_callback(partial(self._on_stored, callback))

    async def drain(self, timeout: timedelta | None = None) -> None:
        """Wait until every recall is done; after `timeout`, drop the rest."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout.total_seconds() if timeout else None):
                while unfinished := {*self._pending, *self._tasks}:
                    await asyncio.wait(unfinished)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _on_stored(self, callback: VoidedCallback, pending: "asyncio.Future[Any]") -> None:
        self._pending.discard(pending)
        if pending.cancelled() or is_certainly_not_stored(pending.exception()):
            return
        self._voided.append(callback)
        if not self._tasks:
            self._tasks.add(asyncio.create_task(self._run(), name="recall callbacks"))

    async def _run(self) -> None:
        try:
            while batch := self._unexpired():
                try:
                    async with self._db.autocommit() as tx:
                        await void_callbacks(tx, batch)
                except PabalError as error:
                    log.warning("callback recall failed", count=len(batch), error=str(error))
                    await asyncio.sleep(RECALL_RETRY_DELAY)
                else:
                    for _ in batch:
                        self._voided.popleft()
        finally:  # no await since the last check: a recall added in between would find a task about to end
            self._tasks -= {asyncio.current_task()}

    def _unexpired(self) -> list[VoidedCallback]:
        now = monotonic()
        self._voided = deque(callback for callback in self._voided if callback.deadline > now)
        return [*self._voided]
