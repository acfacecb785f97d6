"""Polling under load: SQL publishers stop notifying, and every process wakes its event listeners by itself.

A NOTIFY in each publishing transaction takes a database-wide lock until the commit is on disk. A process that hears
many of them sets the sequence `pabal.polling_until`, which publishers read at their commit, and tells the other
processes. Each then wakes its listeners every few milliseconds until shortly after that time. One that finds no rows
does so less often: most processes of a large installation have nothing to do with the load.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import asyncpg

from pabal.core.errors import PabalError
from pabal.core.log import get_logger
from pabal.db.doorbell.channels import NOTIFY_CHANNEL, Channel
from pabal.db.pool import Database
from pabal.db.queries import load_queries

Q = load_queries(__file__)
log = get_logger()

SQL_SENDER = "sql"
"""The sender of notifications by the trigger of public.event_queue."""
LOAD_COUNT, LOAD_WINDOW = 50, 1.0
"""As many notifications of SQL publishers within a window of seconds are load."""
LOAD_POLLING_TIME = timedelta(seconds=2)
LOAD_POLLING_OVERLAP = timedelta(milliseconds=200)
"""How long a process polls on: a publisher may read the sequence just before it ends and commit just after."""
LOAD_POLLING_INTERVAL, IDLE_POLLING_INTERVAL = 0.005, 0.015
"""Seconds between two polls of a process that found rows shortly before, and of one that did not."""
IDLE_AFTER = 0.2
"""Seconds without rows after which a process polls at the longer interval."""


class LoadPolling:
    """Detects load by SQL publishers and polls while it lasts."""

    def __init__(self, db: Database, sender_id: str, wake: Callable[[], None], announce: Callable[[], None]) -> None:
        self._db = db
        self._sender_id = sender_id
        self._wake = wake
        self._announce_elsewhere = announce
        """Tells processes that do not listen for NOTIFY."""
        self._heard: deque[float] = deque(maxlen=LOAD_COUNT)
        self._until = 0.0
        self._found_rows_at = 0.0
        self._polling: asyncio.Task[None] | None = None
        self._announcing: asyncio.Task[None] | None = None

    @property
    def is_polling(self) -> bool:
        return self._polling is not None

    @property
    def is_idle(self) -> bool:
        """Whether this process found no rows lately."""
        return asyncio.get_running_loop().time() - self._found_rows_at > IDLE_AFTER

    def count_notification(self) -> None:
        """Count a notification of an SQL publisher; under load, begin to poll and announce it."""
        now = asyncio.get_running_loop().time()
        self._heard.append(now)
        if len(self._heard) == LOAD_COUNT and now - self._heard[0] < LOAD_WINDOW and self._announcing is None:
            self._announcing = asyncio.create_task(self._announce(), name="doorbell announces polling")

    def poll_for(self, time: timedelta = LOAD_POLLING_TIME) -> None:
        """Wake the listeners every few milliseconds during this time and the overlap."""
        loop = asyncio.get_running_loop()
        self._heard.clear()
        self._until = max(self._until, loop.time() + (time + LOAD_POLLING_OVERLAP).total_seconds())
        if self._polling is None:
            self._found_rows_at = loop.time()
            self._polling = asyncio.create_task(self._poll(), name="doorbell polls")

    def note_rows(self) -> None:
        """Poll at the short interval for a while."""
        if self._polling is not None:
            self._found_rows_at = asyncio.get_running_loop().time()

    async def read(self, connection: Any) -> None:
        """Join the polling that another process announced before this one listened."""
        with suppress(asyncpg.UndefinedTableError):  # not migrated yet
            if time := await connection.fetchval(Q.find_polling_time.sql):
                self.poll_for(time)

    async def close(self) -> None:
        tasks = [task for task in (self._polling, self._announcing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _announce(self) -> None:
        self.poll_for()  # before publishers read the sequence
        try:
            async with self._db.autocommit() as tx:
                await tx.run(
                    Q.start_polling,
                    time=LOAD_POLLING_TIME,
                    channel=NOTIFY_CHANNEL,
                    payload=f"{self._sender_id} {Channel.POLLING}",
                )
            self._announce_elsewhere()
        except PabalError as error:
            log.warning("polling not announced", error=str(error))
        finally:
            self._announcing = None

    async def _poll(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while loop.time() < self._until:
                self._wake()
                await asyncio.sleep(IDLE_POLLING_INTERVAL if self.is_idle else LOAD_POLLING_INTERVAL)
        finally:
            self._polling = None
