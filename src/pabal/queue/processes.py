"""The running processes. Each sends a heartbeat; one that stops sending is removed."""

import asyncio
import os
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import msgspec

from pabal.core.backoff import spread
from pabal.core.errors import PabalError
from pabal.core.log import get_logger
from pabal.db.doorbell.transport import DoorbellTransport
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


class ProcessDetails(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a process reports about itself. None: not reported, for example by another version."""

    version: str | None = None
    holds: int | None = None
    """The entries in flight."""
    doorbell: DoorbellTransport | None = None
    lacks_nats: bool | None = None
    unreadable_keys: int | None = None
    """The accounts whose texts it cannot decrypt."""
    program: str | None = None
    handlers: dict[str, list[str]] | None = None
    """The event types that its handlers take, by service."""


def parse_process_details(value: object) -> ProcessDetails:
    try:
        return msgspec.convert(value, ProcessDetails)
    except msgspec.ValidationError:  # of another version
        return ProcessDetails()


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A process at its last heartbeat. `silent` is how long ago that was."""

    id: str
    host: str
    pid: int
    lanes: Sequence[str]
    started_at: datetime
    seen_at: datetime
    details: ProcessDetails = field(metadata={"parse": parse_process_details})
    silent: timedelta

    @property
    def handler_summary(self) -> str:
        """The event types that its handlers take, by service: `shop: order.* cart.*`."""
        types_by_service = self.details.handlers or {}
        return ", ".join(f"{service}: {' '.join(types)}" for service, types in types_by_service.items())

    @property
    def uses_nats(self) -> bool:
        """Whether its wakeups should travel by NATS."""
        return self.details.doorbell == "nats" or self.lacks_nats

    @property
    def lacks_nats(self) -> bool:
        return bool(self.details.lacks_nats)


DescribeProcess = Callable[[Tx], Awaitable[ProcessDetails]]
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
