"""The stage every contestant stands on: it is told what to do, and says what came of it as one JSON object.

python -m bench.peers.NAME URL install | fill ROWS | drain ROWS SECONDS | wake TIMES
"""

import argparse
import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

import uvloop

PAYLOAD = {"text": "x" * 189}  # 200 bytes, written without spaces
BATCH = 1000


def settings(**best: int) -> dict[str, int]:
    """What it is run with: the best that `bench.tune` found for it, or what `bench.tune` is trying now."""
    return best | json.loads(os.environ.get("PEER_SETTINGS", "{}"))


class Tally:
    """Counts what was handled. It is over when everything was, or when the time is; only then is the rate taken."""

    def __init__(self, rows: int, seconds: float) -> None:
        self.rows = rows
        self._seconds = seconds
        self._handled = 0
        self._all = asyncio.Event()
        self._began = self._ended = 0.0

    def begin(self) -> None:
        self._began = time.perf_counter()

    def one(self) -> None:
        self._handled += 1
        if self._handled == self.rows:
            self._all.set()

    def many(self, count: int) -> None:
        self._handled += count

    @property
    def left(self) -> float:
        return max(0.0, self._began + self._seconds - time.perf_counter())

    async def over(self) -> bool:
        """Wait for the last one; False when the time was over first, and the rate is that of the time given."""
        try:
            async with asyncio.timeout(self.left):
                await self._all.wait()
        except TimeoutError:
            self.end()
            return False
        return True

    def end(self) -> None:
        """Stop the clock: what was handled is in the table now. Only the first time counts."""
        self._ended = self._ended or time.perf_counter()

    @property
    def rate(self) -> float:
        return min(self._handled, self.rows) / (self._ended - self._began)


class Contestant(Protocol):
    """What every contestant can do. One can also `wake`: say how long single jobs took to their handler."""

    async def install(self, url: str) -> None: ...

    async def fill(self, url: str, rows: int) -> float:
        """Put so many, in batches; how many a second."""
        ...

    async def drain(self, url: str, tally: Tally) -> None: ...


Load = Callable[[int], Awaitable[object]]


async def put_all(put: Load, rows: int) -> float:
    """Put them in batches, one after the other; how many a second."""
    began = time.perf_counter()
    for start in range(0, rows, BATCH):
        await put(min(BATCH, rows - start))
    return rows / (time.perf_counter() - began)


def peak_memory() -> float:
    """Peak memory of this process in MB. getrusage would include the parent process."""
    said = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(said.split()[1]) / 1024


async def perform(contestant: Any, orders: Any) -> dict[str, float]:
    match orders.what:
        case "install":
            await contestant.install(orders.url)
            return {}
        case "fill":
            return {"rate": await contestant.fill(orders.url, orders.rows)}
        case "wake":
            took = await contestant.wake(orders.url, orders.rows)
            return {"p50": took[len(took) // 2], "p99": took[int(len(took) * 0.99)]}
        case _:
            tally = Tally(orders.rows, orders.seconds)
            await contestant.drain(orders.url, tally)
            return {"rate": tally.rate, "memory": peak_memory()}


def enter(contestant: Contestant) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("what", choices=["install", "fill", "drain", "wake"])
    parser.add_argument("rows", type=int, nargs="?", default=0)
    parser.add_argument("seconds", type=float, nargs="?", default=10.0)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(perform(contestant, parser.parse_args()))))
