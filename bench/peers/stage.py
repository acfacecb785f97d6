"""The command line of every contestant. It prints its result as one JSON object.

python -m bench.peers.NAME URL install|consume|publish
python -m bench.peers.NAME URL fill ROWS | drain ROWS SECONDS | transact CONNECTIONS SECONDS

It prints a line `begin` and a line `end` when its clock starts and stops, so that start-up is not measured. In the
result, `cpu` is the CPU time of this process in seconds and `jobs` the number of jobs that it was used for.

`publish` puts one job for each line of its input, with the time in it. `consume` runs a worker as in production, which
prints a line `age SECONDS` when the handler of such a job starts. The clock is the same in all processes of a machine.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, Protocol

import uvloop

PAYLOAD = {"text": "x" * 189}  # 200 bytes, written without spaces
BATCH = 1000
INSERT_ORDER = "insert into public.bench_orders (item) values ('book')"
"""The caller's own row, in the transaction that also inserts the job."""


def settings(**best: int) -> dict[str, int]:
    """The settings of a contestant: the best that `bench.tune` found, or those that `bench.tune` tries now."""
    return best | json.loads(os.environ.get("PEER_SETTINGS", "{}"))


def announce(line: str) -> None:
    print(line, flush=True)


def timed_payload() -> dict[str, Any]:
    return {"at": time.perf_counter()}


def report_age(payload: dict[str, Any]) -> None:
    """Called first in the handler of a worker that `consume` runs. Other jobs have no time in them."""
    now = time.perf_counter()
    if "at" in payload:
        announce(f"age {now - payload['at']:.6f}")


async def put_on_demand(put: Callable[[], Awaitable[object]]) -> None:
    """Put one job for each line of the input."""
    while await asyncio.to_thread(sys.stdin.readline):
        await put()


class Tally:
    """Counts handled jobs until all are handled or the time is over. The rate is known after `end`.

    The clock starts after the start-up, before the first claim; with the first handler at the latest.
    """

    def __init__(self, rows: int, seconds: float) -> None:
        self.rows = rows
        self._seconds = seconds
        self._handled = 0
        self._all = asyncio.Event()
        self._started = asyncio.Event()
        self._began = self._ended = 0.0
        self._cpu = 0.0

    def begin(self) -> None:
        """Start the clock. Only the first call counts."""
        if self._began:
            return
        announce("begin")
        self._began = time.perf_counter()
        self._cpu = -time.process_time()
        self._started.set()

    def one(self) -> None:
        self.begin()
        self._handled += 1
        if self._handled == self.rows:
            self._all.set()

    def begin_with(self, claim: Callable[..., Any]) -> Callable[..., Any]:
        """Start the clock with the first call of `claim`, a function of the contestant."""

        @wraps(claim)
        def begin_and_claim(*arguments: Any, **named: Any) -> Any:
            self.begin()
            return claim(*arguments, **named)

        return begin_and_claim

    def many(self, count: int) -> None:
        self._handled += count

    @property
    def left(self) -> float:
        return max(0.0, self._began + self._seconds - time.perf_counter())

    async def over(self) -> bool:
        """Wait for the last job. False if the time was over first; the rate is then that of the time given."""
        await self._started.wait()
        try:
            async with asyncio.timeout(self.left):
                await self._all.wait()
        except TimeoutError:
            self.end()
            return False
        return True

    def end(self) -> None:
        """Stop the clock: what was handled is in the table now. Only the first call counts."""
        if not self._ended:
            self._ended = time.perf_counter()
            self._cpu += time.process_time()
            announce("end")

    @property
    def result(self) -> dict[str, float]:
        jobs = min(self._handled, self.rows)
        return {"rate": jobs / (self._ended - self._began), "jobs": jobs, "cpu": self._cpu}


class Contestant(Protocol):
    """What every contestant can do.

    Some can also `transact`: insert a row of the caller and a job in one transaction. Some can also `publish` single
    jobs on demand, and `consume` them in another process.
    """

    async def install(self, url: str) -> None: ...

    async def fill(self, url: str, rows: int) -> dict[str, float]:
        """Put as many jobs, in batches."""
        ...

    async def drain(self, url: str, tally: Tally) -> None: ...


Load = Callable[[int], Awaitable[object]]


async def put_all(put: Load, rows: int) -> dict[str, float]:
    """Put the rows in batches, one after the other."""
    announce("begin")
    began, cpu = time.perf_counter(), time.process_time()
    for start in range(0, rows, BATCH):
        await put(min(BATCH, rows - start))
    elapsed, cpu = time.perf_counter() - began, time.process_time() - cpu
    announce("end")
    return {"rate": rows / elapsed, "jobs": rows, "cpu": cpu}


async def commit_repeatedly(commits: Sequence[Callable[[], Awaitable[object]]], seconds: float) -> dict[str, float]:
    """Call each of them in a loop, all at the same time, until the time is over."""
    durations: list[float] = []

    async def repeat(commit: Callable[[], Awaitable[object]]) -> None:
        now = time.perf_counter()
        while now < stop:
            await commit()
            durations.append(-now + (now := time.perf_counter()))

    announce("begin")
    began, cpu = time.perf_counter(), time.process_time()
    stop = began + seconds
    await asyncio.gather(*map(repeat, commits))
    elapsed, cpu = time.perf_counter() - began, time.process_time() - cpu
    announce("end")
    durations.sort()
    return {
        "rate": len(durations) / elapsed,
        "jobs": len(durations),
        "cpu": cpu,
        "p50": durations[len(durations) // 2],
        "p99": durations[int(len(durations) * 0.99)],
    }


def peak_memory() -> float:
    """Peak memory of this process in MB. getrusage would include the parent process."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


async def run_command(contestant: Any, args: Any) -> dict[str, float]:
    match args.command:
        case "install":
            await contestant.install(args.url)
            return {}
        case "fill":
            return await contestant.fill(args.url, args.rows)
        case "transact":
            return await contestant.transact(args.url, args.rows, args.seconds)
        case "consume":
            await contestant.consume(args.url)
            return {}
        case "publish":
            await contestant.publish(args.url)
            return {}
        case _:
            tally = Tally(args.rows, args.seconds)
            await contestant.drain(args.url, tally)
            return tally.result | {"memory": peak_memory()}


def enter(contestant: Contestant) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("command", choices=["install", "fill", "drain", "transact", "consume", "publish"])
    parser.add_argument("rows", type=int, nargs="?", default=0)
    parser.add_argument("seconds", type=float, nargs="?", default=10.0)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(run_command(contestant, parser.parse_args()))))
