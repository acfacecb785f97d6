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
from pabal.db.queries import load_queries
from pabal.db.tx import Tx

Q = load_queries(__file__)
log = get_logger()

HEARTBEAT_INTERVAL = timedelta(seconds=15)
DEAD_AFTER = 8 * HEARTBEAT_INTERVAL
"""After so long without a word a process is taken for dead."""
UNREGISTER_TIMEOUT = 1.0
"""Seconds a process that stops takes to say so."""


@dataclass(frozen=True, slots=True)
class ProcessInfo:
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
    def handler_summary(self) -> str:
        """Whose events its handlers take: `shop: order.* cart.*`."""
        taken: dict[str, list[str]] = self.details.get("handlers", {})
        return ", ".join(f"{service}: {' '.join(types)}" for service, types in taken.items())


DescribeProcess = Callable[[Tx], Awaitable[dict[str, Any]]]
"""Says what there is to say of a process besides its name: asked at every beat, in the beat's transaction."""


def process_name() -> str:
    """This process, as its workers' names end."""
    return f"{socket.gethostname()}-{os.getpid()}"


@asynccontextmanager
async def registered_process(
    db: Database, lanes: Sequence[str], describe: DescribeProcess, heartbeat_interval: timedelta = HEARTBEAT_INTERVAL
) -> AsyncGenerator[None]:
    """Be on the roll for as long as the block lasts."""
    me = {"id": process_name(), "host": socket.gethostname(), "pid": os.getpid(), "lanes": lanes}

    async def say(*, first: bool) -> None:
        try:
            async with db.transaction() as tx:
                await tx.run(Q.upsert_process, **me, details=await describe(tx), first=first)
        except PabalError as error:  # who works unseen still works
            log.warning("roll missed", error=str(error))

    async def go_on() -> None:
        await say(first=True)
        while True:
            await asyncio.sleep(heartbeat_interval.total_seconds() * random.uniform(0.8, 1.2))  # noqa: S311 spreads the beats of many
            await say(first=False)

    beating = asyncio.create_task(go_on(), name="roll")
    try:
        yield
    finally:
        beating.cancel()
        await asyncio.wait([beating])
        with suppress(PabalError, TimeoutError):  # it is swept
            async with asyncio.timeout(UNREGISTER_TIMEOUT), db.autocommit() as tx:
                await tx.run(Q.delete_process, id=me["id"])


async def list_processes(tx: Tx) -> list[ProcessInfo]:
    """Everybody at work, the longest first."""
    return await tx.all(ProcessInfo, Q.list_processes)


async def purge_processes(tx: Tx, batch: int) -> int:
    """Strike off who has been silent for long; how many."""
    return await tx.run(Q.purge_processes, silent=DEAD_AFTER, batch=batch)
