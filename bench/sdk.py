"""The Python client as a load driver, in a process of its own.

python -m bench.sdk publish|threads|pull URL CALLERS SECONDS < a JSON object: the service, its secret, the target
"""

import asyncio
import json
import sys
import threading
import time
from typing import Any, NamedTuple

import uvloop

from bench.peers.stage import PAYLOAD
from pabal_client import AsyncClient, Client

CLAIM = 100
EVENT_TYPE = "order.paid"


class Run(NamedTuple):
    """How long each event took, and the time and CPU time of all, without the start."""

    durations: list[float]
    spent: float
    used: float


async def publish(request: dict[str, str], url: str, callers: int, seconds: float) -> Run:
    """Each caller publishes one event after the other."""
    durations: list[float] = []
    async with AsyncClient(url, request["service"], request["secret"]) as client:
        await client.publish(EVENT_TYPE, PAYLOAD, target=request["target"])
        began, used = time.perf_counter(), time.process_time()
        stop = began + seconds

        async def call() -> None:
            now = time.perf_counter()
            while now < stop:
                await client.publish(EVENT_TYPE, PAYLOAD, target=request["target"])
                durations.append(-now + (now := time.perf_counter()))

        await asyncio.gather(*(call() for _ in range(callers)))
        spent, used = time.perf_counter() - began, time.process_time() - used
    return Run(durations, spent, used)


def publish_in_threads(request: dict[str, str], url: str, callers: int, seconds: float) -> Run:
    durations: list[float] = []
    with Client(url, request["service"], request["secret"]) as client:
        client.publish(EVENT_TYPE, PAYLOAD, target=request["target"])
        began, used = time.perf_counter(), time.process_time()
        stop = began + seconds

        def call() -> None:
            now = time.perf_counter()
            while now < stop:
                client.publish(EVENT_TYPE, PAYLOAD, target=request["target"])
                durations.append(-now + (now := time.perf_counter()))

        threads = [threading.Thread(target=call) for _ in range(callers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        spent, used = time.perf_counter() - began, time.process_time() - used
    return Run(durations, spent, used)


async def pull(request: dict[str, str], url: str, callers: int, seconds: float) -> Run:
    """Each caller claims up to a hundred events and acknowledges them, until there are none or the time is over."""
    durations: list[float] = []
    async with AsyncClient(url, request["service"], request["secret"]) as client:
        await client.claim(1, lease=5)  # for the token
        began, used = time.perf_counter(), time.process_time()
        stop = began + seconds

        async def consume() -> None:
            while (now := time.perf_counter()) < stop and (events := await client.claim(CLAIM)):
                await client.ack(*(event.receipt for event in events))
                durations.extend([time.perf_counter() - now] * len(events))

        await asyncio.gather(*(consume() for _ in range(callers)))
        spent, used = time.perf_counter() - began, time.process_time() - used
    return Run(durations, spent, used)


def main() -> None:
    what, url, callers, seconds = sys.argv[1:]
    request: dict[str, Any] = json.load(sys.stdin)
    if what == "threads":
        done = publish_in_threads(request, url, int(callers), float(seconds))
    else:
        run = publish if what == "publish" else pull
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            done = runner.run(run(request, url, int(callers), float(seconds)))
    durations = sorted(done.durations)
    print(
        json.dumps(
            {
                "events": len(durations),
                "rate": len(durations) / done.spent,
                "p50": durations[len(durations) // 2],
                "p99": durations[int(len(durations) * 0.99)],
                "used": done.used,
            }
        )
    )


if __name__ == "__main__":
    main()
