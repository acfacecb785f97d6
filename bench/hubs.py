"""Benchmark of many processes of one hub: wake-ups by NOTIFY and by NATS, with 1, 2, 4 and 8 processes.

The first process takes the messages in, the bots are connected to the last one, and the others are idle. Each number of
processes runs with NOTIFY and with NATS in turn.
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
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from socket import socket

from bench.ground import connected, show
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
from pabal.db import embedded
from pabal.db.migrate import apply_migrations

PROCESS_COUNTS = (1, 2, 4, 8)
USER_COUNTS = (1, 32)
COLUMNS = ["processes, wake-ups", "users", "/s", "stream p50 ms", "stream p99 ms", "hubs ms", "pg ms", "listening"]
"""CPU milliseconds are per message; `listening` are the connections that LISTEN."""
COUNT_LISTENING = "select count(*) from pg_stat_activity where query like 'LISTEN %' or query like '%pg_notify($1, $2)'"
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
def nats_server() -> Generator[str]:
    """The URL of a NATS server of its own."""
    with socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = Path(sys.executable).with_name("nats-server")
    running = subprocess.Popen([program, "-a", "127.0.0.1", "-p", str(port)], stderr=subprocess.DEVNULL)
    try:
        yield f"nats://127.0.0.1:{port}"
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


async def count_listening(ground: Ground) -> int:
    async with connected(ground.endpoint.owner_url) as owner:
        return await owner.fetchval(COUNT_LISTENING)


def measure(counts: Sequence[int], rounds: int, seconds: float) -> list[list[object]]:
    folder = Path(tempfile.mkdtemp(prefix="pabal-bench-"))
    folder.chmod(0o755)
    results: dict[tuple[int, str, int], list[ProcessesResult]] = {}
    try:
        with nats_server() as url, embedded.start_embedded_server(folder / "server", options=SERVER_OPTIONS) as server:
            asyncio.run(apply_migrations(server.address.owner_url, login="pabal_hub"))
            users = asyncio.run(create_users(server.address.owner_url))
            for _ in range(rounds):
                for count in counts:
                    for name, doorbell in (("NOTIFY", ""), ("NATS", url)):
                        with hubs_on(server, folder, users, count, doorbell) as hubs:
                            for user_count in USER_COUNTS:
                                runs = results.setdefault((count, name, user_count), [])
                                runs.append(run_once(hubs, user_count, seconds))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
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
    parser.add_argument("--processes", type=int, nargs="*", default=PROCESS_COUNTS)
    options = parser.parse_args()
    show(
        "Messages taken in by the first process for bots on the last one",
        COLUMNS,
        measure(options.processes, options.rounds, options.seconds),
    )


if __name__ == "__main__":
    main()
