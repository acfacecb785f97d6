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

from pabal.core.errors import PabalError, Refused
from pabal.core.log import get_logger
from pabal.db.bells import Bell
from pabal.db.pool import Database
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.relay.arrival import Arrival

Q = beside(__file__)
log = get_logger()

MOST = 1000
"""Callbacks that wait to be taken back; whoever comes then is not let in, so that there is nothing to take back."""
LIFE = timedelta(seconds=60)
"""After this a callback is dead by itself."""
PAUSE = 1.0
"""Seconds until a database that is away is asked again."""


@dataclass(frozen=True, slots=True)
class Void:
    """A message, should it be stored, whose callback Kakao no longer takes; and until when that matters."""

    conversation_key: str
    channel: str
    source_event_id: str
    until: float


async def take_back(tx: Tx, voids: Sequence[Void]) -> None:
    """Leave these messages without a callback: what is answered to them will be a late answer."""
    changed = await tx.column(
        Q.take_back,
        conversations=[void.conversation_key for void in voids],
        channels=[void.channel for void in voids],
        source_events=[void.source_event_id for void in voids],
    )
    for account in {*changed}:
        tx.ring(Bell.MESSAGES, str(account))  # whoever looked meanwhile has passed them over


class Recalls:
    """Takes callbacks back after the answer was given: all of them in one statement, as soon as there is a database.

    However many webhooks come while it is away, few are remembered, as little of each as will do, and none for longer
    than its callback lives.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._coming: set[asyncio.Future[Any]] = set()
        self._voids: deque[Void] = deque()
        self._clerks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._coming) + len(self._voids)

    @property
    def full(self) -> bool:
        return len(self) >= MOST

    def recall(self, arrival: Arrival, coming: "asyncio.Future[Any]") -> None:
        """Take the callback back from what came, once it is known that it came; `coming` is what is waited for."""
        void = Void(arrival.key, arrival.channel, arrival.source_event_id, monotonic() + LIFE.total_seconds())
        self._coming.add(coming)
        coming.add_done_callback(partial(self._came, void))

    async def finish(self, within: timedelta | None = None) -> None:
        """Wait until all are taken back, or give up what takes longer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within.total_seconds() if within else None):
                while under_way := {*self._coming, *self._clerks}:
                    await asyncio.wait(under_way)
        for clerk in self._clerks:
            clerk.cancel()
        await asyncio.gather(*self._clerks, return_exceptions=True)

    def _came(self, void: Void, coming: "asyncio.Future[Any]") -> None:
        self._coming.discard(coming)
        if coming.cancelled() or isinstance(coming.exception(), Refused):
            return  # nothing of it was stored
        self._voids.append(void)
        if not self._clerks:
            self._clerks.add(asyncio.create_task(self._work(), name="callbacks taken back"))

    async def _work(self) -> None:
        try:
            while group := self._living():
                try:
                    async with self._db.autocommit() as tx:
                        await take_back(tx, group)
                except PabalError as error:
                    log.warning("callbacks not taken back", many=len(group), why=str(error))
                    await asyncio.sleep(PAUSE)
                else:
                    for _ in group:
                        self._voids.popleft()
        finally:  # in the same step as the last look: what came in between would find a clerk that looks no more
            self._clerks -= {asyncio.current_task()}

    def _living(self) -> list[Void]:
        now = monotonic()
        self._voids = deque(void for void in self._voids if void.until > now)
        return [*self._voids]
