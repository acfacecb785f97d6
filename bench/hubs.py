"""Benchmark of many processes of one hub: wake-ups by NOTIFY and by NATS, with 1, 2, 4 and 8 processes.

First the doorbells alone, many in one process: what a wake-up for all of them costs PostgreSQL, and when the last one
has it. Then whole hubs: the first process takes the messages in, the bots are connected to the last one, and the others
are idle. Each number runs with NOTIFY and with NATS in turn.
"""

import argparse
import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from dataclasses import astuple, dataclass
from datetime import timedelta
from pathlib import Path
from socket import socket

from bench.ground import connected, show
from bench.meter import children_of
from bench.relay import (
    SEPARATE,
    SERVER_OPTIONS,
    TRUNCATE,
    Ground,
    cpu_seconds,
    create_users,
    execute,
    hub_on,
    run_driver,
)
from pabal.core.nats_url import parse_nats_urls
from pabal.db import embedded
from pabal.db.doorbell.channels import Channel, Wakeup
from pabal.db.doorbell.doorbell import Doorbell, Listener
from pabal.db.migrate import apply_migrations
from pabal.db.pool import ConnectOptions, Database

PROCESS_COUNTS = (1, 2, 4, 8)
DOORBELL_COUNTS = (2, 4, 8, 16, 64)
WAKEUP_COLUMNS = ["doorbells, wake-ups", "pg µs", "nats µs", "all woken, p50 ms", "p99 ms"]
PAUSE = 0.01
"""Seconds between two wake-ups, so that each one is sent at once."""
USER_COUNTS = (1, 32)
COLUMNS = ["processes, wake-ups", "users", "/s", "stream p50 ms", "stream p99 ms", "hubs ms", "pg ms", "listening"]
"""CPU milliseconds are per message; `listening` are the connections that LISTEN."""
COUNT_LISTENING = "select count(*) from pg_stat_activity where query like 'LISTEN %' or query like '%pg_notify($1, $2)'"
OPTIONS = SERVER_OPTIONS | {"max_connections": "300"}
SETTLING_SECONDS = 3.0
"""How long processes on NATS take at most to agree which one of them listens."""


@dataclass(frozen=True, slots=True)
class ProcessesResult:
    rate: float
    p50: float
    p99: float
    hubs: float
    postgres: float
    listening: float


@contextmanager
def nats_server() -> Generator[tuple[int, str]]:
    """The pid and the URL of a NATS server."""
    with socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = Path(sys.executable).with_name("nats-server")
    running = subprocess.Popen([program, "-a", "127.0.0.1", "-p", str(port)], stderr=subprocess.DEVNULL)
    try:
        yield running.pid, f"nats://127.0.0.1:{port}"
    finally:
        running.terminate()
        running.wait()


@contextmanager
def hubs_on(
    server: embedded.EmbeddedServer, folder: Path, users: dict[str, list[dict[str, str]]], count: int, doorbell: str
) -> Generator[list[Ground]]:
    os.environ["PABAL_DOORBELL"] = doorbell
    with ExitStack() as stack:
        processes = [stack.enter_context(hub_on(server.address, folder)) for _ in range(count)]
        time.sleep(SETTLING_SECONDS)
        yield [Ground(server.address, Path(), pid, server.pid, port, users) for pid, port in processes]


def run_once(hubs: Sequence[Ground], users: int, seconds: float) -> ProcessesResult:
    first = hubs[0]
    asyncio.run(execute(first, TRUNCATE))
    before = [cpu_seconds(hub) for hub in hubs]
    report = run_driver(
        "bench.kakao",
        port=first.port,
        bot_port=hubs[-1].port,
        talks=True,
        seconds=seconds,
        users=first.users[SEPARATE][:users],
    )
    after = [cpu_seconds(hub) for hub in hubs]
    messages = report["callback"]["rate"] * report["seconds"]
    return ProcessesResult(
        report["stream"]["rate"],
        report["stream"]["p50"] * 1000,
        report["stream"]["p99"] * 1000,
        sum(now[0] - then[0] for now, then in zip(after, before, strict=True)) / messages * 1000,
        (after[0][1] - before[0][1]) / messages * 1000,
        asyncio.run(count_listening(first)),
    )


def cpu_nanoseconds(pid: int) -> int:
    """CPU time of a process and its children that run now, finer than the clock ticks of /proc/PID/stat."""
    total = 0
    for process in (pid, *children_of(pid)):
        for thread in Path(f"/proc/{process}/task").glob("*/schedstat"):
            with suppress(OSError):
                total += int(thread.read_text().split()[0])
    return total


async def measure_wakeups(
    server: embedded.EmbeddedServer, nats: tuple[int, str], count: int, doorbell: str, number: int
) -> list[float]:
    """Send wake-ups from one doorbell, each when all others have the one before."""
    options = ConnectOptions(server.address.owner_url, pooler=False)
    async with AsyncExitStack() as stack:
        db = await stack.enter_async_context(Database(ConnectOptions(server.address.hub_url)))
        bells = [Doorbell(db, options, nats=parse_nats_urls(doorbell) if doorbell else ()) for _ in range(count)]
        listeners: list[Listener] = []
        for bell in bells:
            await bell.open()
            stack.push_async_callback(bell.close)
            while not bell.listening:  # noqa: ASYNC110 it has no event for that
                await asyncio.sleep(PAUSE)
            listeners.append(stack.enter_context(bell.listen(Channel.MESSAGES)))
        await asyncio.sleep(SETTLING_SECONDS)
        for listener in listeners:
            listener.take_topics()
        before, durations = (cpu_nanoseconds(server.pid), cpu_nanoseconds(nats[0])), list[float]()
        for topic in map(str, range(number)):
            sent_at = time.perf_counter()
            bells[0].send([Wakeup(Channel.MESSAGES, topic)])
            for listener in listeners[1:]:
                await listener.wait(timedelta(seconds=30))
            durations.append((time.perf_counter() - sent_at) * 1000)
            await asyncio.sleep(PAUSE)
        after = cpu_nanoseconds(server.pid), cpu_nanoseconds(nats[0])
    durations.sort()
    costs = [(now - then) / number / 1000 for now, then in zip(after, before, strict=True)]
    return [*costs, durations[number // 2], durations[int(number * 0.99)]]


async def count_listening(ground: Ground) -> int:
    async with connected(ground.endpoint.owner_url) as owner:
        return await owner.fetchval(COUNT_LISTENING)


def measure_hubs(
    server: embedded.EmbeddedServer, folder: Path, url: str, counts: Sequence[int], rounds: int, seconds: float
) -> list[list[object]]:
    results: dict[tuple[int, str, int], list[ProcessesResult]] = {}
    users = asyncio.run(create_users(server.address.owner_url))
    for _ in range(rounds):
        for count in counts:
            for name, doorbell in (("NOTIFY", ""), ("NATS", url)):
                with hubs_on(server, folder, users, count, doorbell) as hubs:
                    for user_count in USER_COUNTS:
                        runs = results.setdefault((count, name, user_count), [])
                        runs.append(run_once(hubs, user_count, seconds))
    return [
        [
            f"{count}, {name}",
            user_count,
            *(statistics.median(column) for column in zip(*map(astuple, runs), strict=True)),
        ]
        for (count, name, user_count), runs in results.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--wakeups", type=int, default=300)
    parser.add_argument("--processes", type=int, nargs="*", default=PROCESS_COUNTS)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="pabal-bench-"))
    folder.chmod(0o755)
    try:
        with nats_server() as nats, embedded.start_embedded_server(folder / "server", options=OPTIONS) as server:
            asyncio.run(apply_migrations(server.address.owner_url, login="pabal_hub"))
            rows: list[list[object]] = [
                [f"{count}, {name}", *asyncio.run(measure_wakeups(server, nats, count, doorbell, options.wakeups))]
                for count in DOORBELL_COUNTS
                for name, doorbell in (("NOTIFY", ""), ("NATS", nats[1]))
                if options.wakeups
            ]
            show("A wake-up for all doorbells", WAKEUP_COLUMNS, rows)
            if options.processes:
                show(
                    "Messages taken in by the first process for bots on the last one",
                    COLUMNS,
                    measure_hubs(server, folder, nats[1], options.processes, options.rounds, options.seconds),
                )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
