"""How long an event takes from one process to another: a publisher, and a worker that sleeps in between.

Both use what the queue offers for production: for Pabal, `pabal work` and a publish of the hub or `pabal.publish`. One
job at a time: the publisher notes the time before it puts the job, and the handler notes the time at its first line.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from bench.contestants import CONTESTANTS, PABAL_TUNED, ROOT, Contestant, program
from bench.ground import connected
from bench.meter import Cost, metered
from bench.report import Table
from pabal.db.embedded import ServerAddress

PATIENCE = 30.0
PAUSE = 0.02
"""Seconds between a handled job and the next: the worker has settled and sleeps."""
WARM_UP = 20


@dataclass(slots=True)
class Wakeups:
    """The durations of all rounds, and their cost."""

    durations: list[float] = field(default_factory=list[float])
    cost: Cost = field(default_factory=Cost)

    def row(self, name: str) -> list[object]:
        ordered = sorted(self.durations)
        milliseconds = [ordered[int(len(ordered) * part)] * 1000 for part in (0.5, 0.99)]
        return [name, *milliseconds, *self.cost.per(len(ordered))]


@dataclass(frozen=True, slots=True)
class Course:
    """A publisher and a worker of one queue."""

    name: str
    contestant: Contestant
    publisher: tuple[str, ...]


def courses() -> list[Course]:
    pairs: list[Course] = []
    for contestant in CONTESTANTS:
        if not contestant.consumes or not contestant.here:
            continue
        if contestant.name == PABAL_TUNED:
            pairs.append(Course("pabal, published by a hub", contestant, program("work")))
            pairs.append(Course("pabal, published by `pabal.publish`", contestant, program("sql")))
        else:
            pairs.append(Course(contestant.name, contestant, contestant.command))
    return pairs


@dataclass(frozen=True, slots=True)
class Pair:
    """The two running processes."""

    publisher: asyncio.subprocess.Process
    worker: asyncio.subprocess.Process

    async def wake(self) -> float:
        assert self.publisher.stdin is not None
        assert self.worker.stdout is not None
        self.publisher.stdin.write(b"\n")
        async with asyncio.timeout(PATIENCE):
            async for line in self.worker.stdout:
                if line.startswith(b"age "):
                    return float(line.split()[1])
        raise SystemExit("the worker ended")


@asynccontextmanager
async def running_pair(endpoint: ServerAddress, course: Course) -> AsyncGenerator[Pair]:
    """Start both; they have handled some jobs when the block begins."""
    contestant = course.contestant
    url = contestant.url(endpoint)
    environment = contestant.environment({})
    if contestant.ours:
        environment["PABAL_DATABASE_URL"] = url
        worker_command = (sys.executable, "-m", "pabal", "work", "--app", "bench.shop:timed_hub")
    else:
        worker_command = (*contestant.command, url, "consume")
    running: list[asyncio.subprocess.Process] = []
    try:
        for command in (worker_command, (*course.publisher, url, "publish")):
            process = await asyncio.create_subprocess_exec(
                *command,
                cwd=ROOT,
                env=environment,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
            running.append(process)
        pair = Pair(running[1], running[0])
        for _ in range(WARM_UP):
            await pair.wake()
        yield pair
    finally:
        for process in running:
            await stop_process(process)


async def stop_process(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(5):
            await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()


async def measure_wakeups(endpoint: ServerAddress, rounds: int, times: int) -> Table:
    results = {course.name: Wakeups() for course in courses()}
    for contestant in {course.contestant.database: course.contestant for course in courses()}.values():
        await contestant.allow_transactions(endpoint)
    async with connected(endpoint.owner_url) as owner:
        for _ in range(rounds):
            for course in courses():
                await course.contestant.empty(endpoint)
                async with running_pair(endpoint, course) as pair:
                    await wake_repeatedly(owner, pair, times, results[course.name])
    return Table(
        f"idle wake-up between two processes, {rounds * times:,} events one at a time",
        ["p50 ms", "p99 ms", "µs publisher + worker", "µs PostgreSQL", "WAL bytes"],
        sorted((wakeups.row(name) for name, wakeups in results.items()), key=lambda row: float(str(row[1]))),
    )


async def wake_repeatedly(owner: Any, pair: Pair, times: int, wakeups: Wakeups) -> None:
    async with metered(owner, pair.publisher.pid, pair.worker.pid) as cost:
        for _ in range(times):
            await asyncio.sleep(PAUSE)
            wakeups.durations.append(await pair.wake())
    wakeups.cost.add_since(Cost(), cost)
