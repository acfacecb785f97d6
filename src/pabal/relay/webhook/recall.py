"""Recall: the callback of a message whose webhook was told something else is taken back from it."""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from time import monotonic
from typing import Any

from pabal.core.errors import PabalError, RequestError
from pabal.core.log import get_logger
from pabal.db.channels import Channel
from pabal.db.pool import Database
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.relay.webhook.payload import InboundPayload

Q = load_queries(__file__)
log = get_logger()

MAX_PENDING_RECALLS = 1000
"""Callbacks that wait to be taken back; whoever comes then is not let in, so that there is nothing to take back."""
KAKAO_CALLBACK_LIFETIME = timedelta(seconds=60)
"""After this a callback is dead by itself."""
RECALL_RETRY_DELAY = 1.0
"""Seconds until a database that is away is asked again."""


@dataclass(frozen=True, slots=True)
class VoidedCallback:
    """A message, should it be stored, whose callback Kakao no longer takes; and until when that matters."""

    conversation_key: str
    channel: str
    source_event_id: str
    deadline: float


async def void_callbacks(tx: Tx, callbacks: Sequence[VoidedCallback]) -> None:
    """Leave these messages without a callback: what is answered to them will be a late answer."""
    changed = await tx.column(
        Q.void_callbacks,
        conversations=[void.conversation_key for void in callbacks],
        channels=[void.channel for void in callbacks],
        source_events=[void.source_event_id for void in callbacks],
    )
    for account in {*changed}:
        tx.notify(Channel.MESSAGES, str(account))  # whoever looked meanwhile has passed them over


class CallbackRecaller:
    """Takes callbacks back after the answer was given: all of them in one statement, as soon as there is a database.

    However many webhooks come while it is away, few are remembered, as little of each as will do, and none for longer
    than its callback lives.
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
        """Take the callback back from what came, once it is known that it came; `coming` is what is waited for."""
        void = VoidedCallback(
            payload.conversation_key,
            payload.channel,
            payload.source_event_id,
            monotonic() + KAKAO_CALLBACK_LIFETIME.total_seconds(),
        )
        self._pending.add(pending)
        pending.add_done_callback(partial(self._on_stored, void))

    async def drain(self, timeout: timedelta | None = None) -> None:
        """Wait until all are taken back, or give up what takes longer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout.total_seconds() if timeout else None):
                while under_way := {*self._pending, *self._tasks}:
                    await asyncio.wait(under_way)
        for clerk in self._tasks:
            clerk.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _on_stored(self, void: VoidedCallback, coming: "asyncio.Future[Any]") -> None:
        self._pending.discard(coming)
        if coming.cancelled() or isinstance(coming.exception(), RequestError):
            return  # nothing of it was stored
        self._voided.append(void)
        if not self._tasks:
            self._tasks.add(asyncio.create_task(self._run(), name="callbacks taken back"))

    async def _run(self) -> None:
        try:
            while group := self._unexpired():
                try:
                    async with self._db.autocommit() as tx:
                        await void_callbacks(tx, group)
                except PabalError as error:
                    log.warning("callbacks not taken back", many=len(group), error=str(error))
                    await asyncio.sleep(RECALL_RETRY_DELAY)
                else:
                    for _ in group:
                        self._voided.popleft()
        finally:  # in the same step as the last look: what came in between would find a clerk that looks no more
            self._tasks -= {asyncio.current_task()}

    def _unexpired(self) -> list[VoidedCallback]:
        now = monotonic()
        self._voided = deque(void for void in self._voided if void.deadline > now)
        return [*self._voided]
