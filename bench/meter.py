"""What a run costs besides time: CPU seconds of PostgreSQL and of other processes, and bytes of WAL."""

import os
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Cost:
    """Seconds of CPU and bytes of WAL; filled in when the run is over."""

    postgres: float = 0.0
    hub: float = 0.0
    wal: int = 0

    def per(self, events: float) -> tuple[float, float, float]:
        """Microseconds of the hub and of PostgreSQL, and bytes of WAL, for one event."""
        return self.hub / events * 1e6, self.postgres / events * 1e6, self.wal / events


@asynccontextmanager
async def metered(owner: Any, hub_pid: int | None = None) -> AsyncGenerator[Cost]:
    """Measure what happens in the block. `hub_pid`: a process whose CPU time is reported beside PostgreSQL's."""
    postmaster = parent_of(await owner.fetchval("select pg_backend_pid()"))
    cost = Cost()
    postgres, hub, lsn = tree_seconds(postmaster), tree_seconds(hub_pid), await wal_position(owner)
    yield cost
    cost.postgres = tree_seconds(postmaster) - postgres
    cost.hub = tree_seconds(hub_pid) - hub
    cost.wal = await wal_position(owner) - lsn


async def wal_position(owner: Any) -> int:
    return int(await owner.fetchval("select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')"))


def tree_seconds(pid: int | None) -> float:
    """CPU seconds of a process, of its children, and of those that have ended."""
    if pid is None:
        return 0.0
    own = sum(map(int, stat_fields(pid)[11:15]))
    children = sum(sum(map(int, stat_fields(child)[11:13])) for child in children_of(pid))
    return (own + children) / TICKS


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
