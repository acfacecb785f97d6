"""The roll: which processes are at work. Each reports now and then; who falls silent is struck off."""

import asyncio
import os
import random
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pabal.core.errors import PabalError
from pabal.core.log import get_logger
from pabal.db.pool import Database
from pabal.db.queries import beside
from pabal.db.tx import Tx

Q = beside(__file__)
log = get_logger()

BEAT = timedelta(seconds=15)
SILENT = 8 * BEAT
"""After so long without a word a process is taken for dead."""
FAREWELL = 1.0
"""Seconds a process that stops takes to say so."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A process at work, as it last reported. `silent` is how long ago that was."""

    id: str
    host: str
    pid: int
    lanes: Sequence[str]
    started_at: datetime
    seen_at: datetime
    details: dict[str, Any]
    silent: timedelta

    @property
    def handles(self) -> str:
        """Whose events its handlers take: `shop: order.* cart.*`."""
        taken: dict[str, list[str]] = self.details.get("handlers", {})
        return ", ".join(f"{service}: {' '.join(types)}" for service, types in taken.items())


Report = Callable[[Tx], Awaitable[dict[str, Any]]]
"""Says what there is to say of a process besides its name: asked at every beat, in the beat's transaction."""


def myself() -> str:
    """This process, as its workers' names end."""
    return f"{socket.gethostname()}-{os.getpid()}"


@asynccontextmanager
async def on_the_roll(
    db: Database, lanes: Sequence[str], report: Report, beat: timedelta = BEAT
) -> AsyncGenerator[None]:
    """Be on the roll for as long as the block lasts."""
    me = {"id": myself(), "host": socket.gethostname(), "pid": os.getpid(), "lanes": lanes}

    async def say(*, first: bool) -> None:
        try:
            async with db.transaction() as tx:
                await tx.run(Q.report, **me, details=await report(tx), first=first)
        except PabalError as error:  # who works unseen still works
            log.warning("roll missed", why=str(error))

    async def go_on() -> None:
        await say(first=True)
        while True:
            await asyncio.sleep(beat.total_seconds() * random.uniform(0.8, 1.2))  # noqa: S311 spreads the beats of many
            await say(first=False)

    beating = asyncio.create_task(go_on(), name="roll")
    try:
        yield
    finally:
        beating.cancel()
        await asyncio.wait([beating])
        with suppress(PabalError, TimeoutError):  # it is swept
            async with asyncio.timeout(FAREWELL), db.autocommit() as tx:
                await tx.run(Q.leave, id=me["id"])


async def every(tx: Tx) -> list[Entry]:
    """Everybody at work, the longest first."""
    return await tx.all(Entry, Q.every)


async def sweep(tx: Tx, batch: int) -> int:
    """Strike off who has been silent for long; how many."""
    return await tx.run(Q.sweep, silent=SILENT, batch=batch)
