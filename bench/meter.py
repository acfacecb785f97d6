"""What a run costs besides time: CPU seconds of PostgreSQL and of other processes, bytes of WAL, and memory."""

import os
import statistics
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TICKS = os.sysconf("SC_CLK_TCK")
COST_COLUMNS = ["µs client", "µs PostgreSQL", "WAL bytes"]
"""CPU time and WAL per job: on a shared machine, rates are noise."""


@dataclass(slots=True)
class Cost:
    """Seconds of CPU and bytes of WAL; filled in when the run is over."""

    postgres: float = 0.0
    hub: float = 0.0
    wal: int = 0

    def per(self, events: float) -> tuple[float, float, float]:
        """Microseconds of the hub and of PostgreSQL, and bytes of WAL, for one event."""
        return self.hub / events * 1e6, self.postgres / events * 1e6, self.wal / events

    def add_since(self, before: "Cost", now: "Cost") -> None:
        self.postgres += now.postgres - before.postgres
        self.hub += now.hub - before.hub
        self.wal += now.wal - before.wal


@dataclass(frozen=True, slots=True)
class Run:
    """One run: jobs per second, what a job costs, and what else the run reports."""

    rate: float
    client: float
    postgres: float
    wal: float
    reported: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def costs(self) -> list[float]:
        return [self.client, self.postgres, self.wal]


def middle_rate(runs: Sequence[Run]) -> float:
    return statistics.median(run.rate for run in runs)


def middle_costs(runs: Sequence[Run]) -> list[float]:
    return [statistics.median(values) for values in zip(*(run.costs for run in runs), strict=True)]


async def measured_here(owner: Any, work: Callable[[], Awaitable[float]]) -> Run:
    """Run `work` in this process, whose CPU time is the client's. It returns the number of its jobs."""
    async with metered(owner) as cost:
        began, used = time.perf_counter(), time.process_time()
        jobs = await work()
        elapsed, used = time.perf_counter() - began, time.process_time() - used
    _, postgres, wal = cost.per(jobs)
    return Run(jobs / elapsed, used / jobs * 1e6, postgres, wal)


@asynccontextmanager
async def metered(owner: Any, *pids: int) -> AsyncGenerator[Cost]:
    """Measure what happens in the block. `pids`: processes whose CPU time is reported beside PostgreSQL's."""
    cost = Cost()
    before = await read_usage(owner, *pids)
    yield cost
    cost.add_since(before, await read_usage(owner, *pids))


async def read_usage(owner: Any, *pids: int) -> Cost:
    """What PostgreSQL and the processes have used since they started."""
    postgres = tree_seconds(await postmaster_pid(owner))
    return Cost(postgres, sum(map(tree_seconds, pids)), await wal_position(owner))


async def postmaster_pid(owner: Any) -> int:
    return parent_of(await owner.fetchval("select pg_backend_pid()"))


async def wal_position(owner: Any) -> int:
    return int(await owner.fetchval("select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')"))


def tree_seconds(pid: int) -> float:
    """CPU seconds of a process, of its children, and of those that have ended."""
    while True:
        ended = sum(map(int, stat_fields(pid)[13:15]))
        children = sum(map(running_seconds, children_of(pid)))
        if sum(map(int, stat_fields(pid)[13:15])) == ended:  # else a child ended in between and was counted nowhere
            return ended / TICKS + running_seconds(pid) + children


def running_seconds(pid: int) -> float:
    """CPU seconds of a process without its children, more exact than the ticks of its stat."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    except (FileNotFoundError, ProcessLookupError):
        return 0.0


def tree_memory(pid: int) -> float:
    """Megabytes of a process and its children. Shared pages are counted once (proportional set size)."""
    return sum(map(proportional_size, (pid, *children_of(pid)))) / 1024


def proportional_size(pid: int) -> int:
    """Kilobytes; zero if the process has ended."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(text.partition("\nPss:")[2].split()[0])


def children_of(pid: int) -> Iterator[int]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and (fields := stat_fields(int(folder.name))) and int(fields[1]) == pid:
            yield int(folder.name)


def parent_of(pid: int) -> int:
    return int(stat_fields(pid)[1])


def stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; none if the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
