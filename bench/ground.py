"""Shared by the benchmarks: a durable PostgreSQL and parallel callers."""

import asyncio
import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from bench.report import Table, print_table
from pabal.db import embedded
from pabal.db.migrate import apply_migrations

ROUNDS = 5


@contextmanager
def durable() -> Generator[embedded.ServerAddress]:
    """A fresh embedded server as the hub runs it: nothing about durability is turned off."""
    folder = Path(tempfile.mkdtemp(prefix="pabal-bench-"))
    folder.chmod(0o755)
    try:
        with embedded.start_embedded_server(folder) as server:
            asyncio.run(
                apply_migrations(server.address.owner_url, login="pabal_hub", settings={"pabal.keep_services": "on"})
            )
            yield server.address
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def connected(url: str) -> AsyncGenerator["asyncpg.Connection[asyncpg.Record]"]:
    connection = await asyncpg.connect(url, server_settings={"jit": "off", "application_name": "pabal"})
    try:
        yield connection
    finally:
        await connection.close()


async def interleaved(contestants: dict[str, Callable[[], Awaitable[float]]], rounds: int = ROUNDS) -> dict[str, float]:
    """Run the contestants in turn, several times, and return the median of each, so that a disturbance affects all."""
    seen: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, run in contestants.items():
            seen[name].append(await run())
    return {name: statistics.median(values) for name, values in seen.items()}


@dataclass(frozen=True, slots=True)
class Paced:
    """Operations, operations per second, and the durations in seconds."""

    count: int
    rate: float
    p50: float
    p99: float


async def paced(callers: Sequence[Callable[[], Awaitable[object]]], seconds: float) -> Paced:
    """Run the callers in parallel, each one in a loop, until the time is over."""
    durations: list[float] = []
    began = time.perf_counter()
    stop = began + seconds

    async def calling(call: Callable[[], Awaitable[object]]) -> None:
        now = time.perf_counter()
        while now < stop:
            await call()
            durations.append(-now + (now := time.perf_counter()))

    await asyncio.gather(*map(calling, callers))
    rate = len(durations) / (time.perf_counter() - began)
    durations.sort()
    return Paced(len(durations), rate, durations[len(durations) // 2], durations[int(len(durations) * 0.99)])


def middle(values: Sequence[float]) -> float:
    return statistics.median(values)


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table whose first column has no heading of its own."""
    print_table(Table(title, columns[1:], rows))
