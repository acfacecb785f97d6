"""The slots of toast streams: how many streams one person may have open, in all processes together.

A stream holds a row until it closes. One statement extends the rows of all streams of a process.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic
from typing import Any
from uuid import UUID

from pabal.core.errors import PabalError, RateLimited
from pabal.core.ids import new_id
from pabal.core.log import get_logger
from pabal.db.pool import Database
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.db.waiting import stop_tasks, wait_with_timeout

Q = load_queries(__file__)
log = get_logger()

MAX_STREAMS_PER_PERSON = 20
"""Open streams of one person, in all processes."""
SLOT_LIFETIME = timedelta(seconds=35)
SLOT_KEEPALIVE_INTERVAL = timedelta(seconds=10)
RETRY_AFTER = timedelta(seconds=5)
RELEASE_TIMEOUT = 1.0
"""Seconds a stopping process spends on releasing its slots; others expire."""


@dataclass(frozen=True, slots=True)
class ToastSlot:
    """The slot of one stream."""

    recipient: str
    number: int
    id: UUID


@dataclass(frozen=True, slots=True)
class SlotAttempt:
    """What became of an attempt to take a slot."""

    slot: int | None
    is_any_free: bool


class ToastStreamSlots:
    """The slots of this process's streams."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._held: set[ToastSlot] = set()
        self._released: set[ToastSlot] = set()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def take(self, tx: Tx, recipient: str) -> ToastSlot:
        """Take a slot. Raises RateLimited if the person has none left."""
        slot_id = new_id()
        while True:
            attempt = await tx.one(
                SlotAttempt,
                Q.take_slot,
                recipient=recipient,
                id=slot_id,
                slots=MAX_STREAMS_PER_PERSON,
                life=SLOT_LIFETIME,
            )
            if attempt.slot is not None:
                break
            if not attempt.is_any_free:
                raise RateLimited("open streams of this person", RETRY_AFTER)
        slot = ToastSlot(recipient, attempt.slot, slot_id)
        self._held.add(slot)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="toast stream slots")
        return slot

    def release(self, slot: ToastSlot) -> None:
        """Release a slot soon."""
        if slot in self._held:
            self._held.discard(slot)
            self._released.add(slot)
            self._changed.set()

    async def stop(self) -> None:
        """Release all slots."""
        if self._task is not None:
            await stop_tasks([self._task])
        self._released |= self._held
        self._held.clear()
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT):
                await self._release_slots()
        except (PabalError, TimeoutError) as error:
            log.warning("toast stream slots not released", error=str(error))

    async def extend(self) -> None:
        """Keep the slots of open streams."""
        if self._held:
            async with self._db.autocommit() as tx:
                await tx.run(Q.extend_slots, **slot_columns(self._held), life=SLOT_LIFETIME)

    async def _run(self) -> None:
        extended_at = monotonic()
        while self._held or self._released:
            await wait_with_timeout(self._changed, SLOT_KEEPALIVE_INTERVAL)
            self._changed.clear()
            try:
                await self._release_slots()
                if monotonic() - extended_at >= SLOT_KEEPALIVE_INTERVAL.total_seconds():
                    extended_at = monotonic()
                    await self.extend()
            except PabalError as error:
                log.warning("toast stream slots not extended", error=str(error))

    async def _release_slots(self) -> None:
        released = [*self._released]
        if released:
            async with self._db.autocommit() as tx:
                await tx.run(Q.release_slots, **slot_columns(released))
            self._released.difference_update(released)


def slot_columns(slots: Iterable[ToastSlot]) -> dict[str, list[Any]]:
    ordered = [*slots]
    return {
        "recipients": [slot.recipient for slot in ordered],
        "slots": [slot.number for slot in ordered],
        "ids": [slot.id for slot in ordered],
    }


async def purge_toast_streams(tx: Tx, batch: int) -> int:
    """Delete the slots of processes that ended without releasing them."""
    return await tx.run(Q.purge_slots, batch=batch)
