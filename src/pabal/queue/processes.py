"""The running processes. Each sends a heartbeat; one that stops sending is removed."""

import asyncio
import os
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pabal.core.backoff import spread
from pabal.core.errors import PabalError
from pabal.core.log import get_logger
from pabal.db.pool import Database
from pabal.db.queries import load_queries
from pabal.db.tx import Tx

Q = load_queries(__file__)
log = get_logger()

HEARTBEAT_INTERVAL = timedelta(seconds=15)
DEAD_AFTER = 8 * HEARTBEAT_INTERVAL
"""A process without a heartbeat for this long is considered dead."""
UNREGISTER_TIMEOUT = 1.0
"""Seconds a stopping process spends on removing itself."""


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A process at its last heartbeat. `silent` is how long ago that was."""

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
        """The event types that its handlers take, by service: `shop: order.* cart.*`."""
        types_by_service: dict[str, list[str]] = self.details.get("handlers", {})
        return ", ".join(f"{service}: {' '.join(types)}" for service, types in types_by_service.items())

    @property
    def uses_nats(self) -> bool:
        """Whether its wakeups should travel by NATS."""
        return self.details.get("doorbell") == "nats" or self.lacks_nats

    @property
    def lacks_nats(self) -> bool:
        return bool(self.details.get("lacks_nats"))


DescribeProcess = Callable[[Tx], Awaitable[dict[str, Any]]]
"""Returns the details of a process. Called at every heartbeat, in the heartbeat's transaction."""


def process_name() -> str:
    """This process's name. The names of its workers end with it."""
    return f"{socket.gethostname()}-{os.getpid()}"


@asynccontextmanager
async def registered_process(
    db: Database, lanes: Sequence[str], describe: DescribeProcess, heartbeat_interval: timedelta = HEARTBEAT_INTERVAL
) -> AsyncGenerator[None]:
    """Register this process for the duration of the block."""
    process = {"id": process_name(), "host": socket.gethostname(), "pid": os.getpid(), "lanes": lanes}

    async def report(*, first: bool) -> None:
        try:
            async with db.transaction() as tx:
                await tx.run(Q.upsert_process, **process, details=await describe(tx), first=first)
        except PabalError as error:  # the process works without it
            log.warning("heartbeat missed", error=str(error))

    async def report_loop() -> None:
        await report(first=True)
        while True:
            await asyncio.sleep(spread(heartbeat_interval.total_seconds()))
            await report(first=False)

    reporter = asyncio.create_task(report_loop(), name="process heartbeat")
    try:
        yield
    finally:
        reporter.cancel()
        await asyncio.wait([reporter])
        with suppress(PabalError, TimeoutError):  # the chore removes it later
            async with asyncio.timeout(UNREGISTER_TIMEOUT), db.autocommit() as tx:
                await tx.run(Q.delete_process, id=process["id"])


async def list_processes(tx: Tx) -> list[ProcessInfo]:
    """All running processes, oldest first."""
    return await tx.all(ProcessInfo, Q.list_processes)


async def purge_processes(tx: Tx, batch: int) -> int:
    """Delete processes without a recent heartbeat; returns how many."""
    return await tx.run(Q.purge_processes, silent=DEAD_AFTER, batch=batch)
