"""Benchmark of two processes of one hub: a message taken in by one reaches a bot's stream on the other.

The bots are connected to the process that takes the messages in, or to the other one, in turn. Then 2,000 streams open
at once while 256 users write; any refused stream ends the run.
"""

import argparse
import asyncio
import shutil
import statistics
import tempfile
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from pathlib import Path

from bench.ground import connected, show
from bench.relay import (
    SEPARATE,
    SERVER_OPTIONS,
    STREAMS,
    TRUNCATE,
    Ground,
    count_calls,
    cpu_seconds,
    create_users,
    execute,
    hub_on,
    run_driver,
)
from pabal.db import embedded
from pabal.db.migrate import apply_migrations

USER_COUNTS = (1, 32)
WRITERS = 256
SAME, OTHER = "the same process", "the other process"
COLUMNS = ["users, bots on", "/s", "stream p50 ms", "stream p99 ms", "statements", "hub ms", "other hub ms", "pg ms"]
"""Statements and CPU time are per message."""


@contextmanager
def two_processes() -> Generator[tuple[Ground, Ground]]:
    """Two processes of one hub on one durable server."""
    folder = Path(tempfile.mkdtemp(prefix="pabal-bench-"))
    folder.chmod(0o755)
    try:
        with embedded.start_embedded_server(folder / "server", options=SERVER_OPTIONS) as server:
            asyncio.run(apply_migrations(server.address.owner_url, login="pabal_hub"))
            users = asyncio.run(create_users(server.address.owner_url))
            with (
                hub_on(server.address, folder) as (pid, port),
                hub_on(server.address, folder) as (other_pid, other_port),
            ):
                ground = Ground(server.address, Path(), pid, server.pid, port, users)
                yield ground, replace(ground, hub=other_pid, port=other_port)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """Rate and latency of messages on their streams; statements and CPU milliseconds per message."""

    rate: float
    p50: float
    p99: float
    statements: float
    hub: float
    other_hub: float
    postgres: float


def run_once(ground: Ground, other: Ground, bots: Ground, users: int, seconds: float) -> DeliveryResult:
    """Round trips whose webhooks go to `ground`, with the bots connected to `bots`."""
    asyncio.run(execute(ground, TRUNCATE))
    calls = asyncio.run(count_calls(ground))
    before = (*cpu_seconds(ground), cpu_seconds(other)[0])
    report = run_driver(
        "bench.kakao",
        port=ground.port,
        bot_port=bots.port,
        talks=True,
        seconds=seconds,
        users=ground.users[SEPARATE][:users],
    )
    after = (*cpu_seconds(ground), cpu_seconds(other)[0])
    messages = report["callback"]["rate"] * report["seconds"]
    hub, postgres, other_hub = ((now - then) / messages * 1000 for now, then in zip(after, before, strict=True))
    return DeliveryResult(
        report["stream"]["rate"],
        report["stream"]["p50"] * 1000,
        report["stream"]["p99"] * 1000,
        (asyncio.run(count_calls(ground)) - calls) / messages,
        hub,
        other_hub,
        postgres,
    )


def measure_deliveries(ground: Ground, other: Ground, rounds: int, seconds: float) -> list[list[object]]:
    results: dict[tuple[int, str], list[DeliveryResult]] = {}
    for _ in range(rounds):
        for users in USER_COUNTS:
            for name, bots in ((SAME, ground), (OTHER, other)):
                results.setdefault((users, name), []).append(run_once(ground, other, bots, users, seconds))
    return [[f"{users}, {name}", *medians(runs)] for (users, name), runs in results.items()]


def medians(results: Sequence[DeliveryResult]) -> list[float]:
    return [statistics.median(column) for column in zip(*map(astuple, results), strict=True)]


async def count_messages(ground: Ground) -> int:
    async with connected(ground.endpoint.owner_url) as owner:
        return await owner.fetchval("select count(*) from public.inbound_messages")


def measure_opening(ground: Ground, seconds: float) -> list[list[object]]:
    """2,000 streams that open at once, in a process whose other users write all the time."""
    users = ground.users[SEPARATE]
    writers, waiting = users[STREAMS : STREAMS + WRITERS], [*users[:STREAMS], *users[STREAMS + WRITERS :]]
    asyncio.run(execute(ground, TRUNCATE))
    with ThreadPoolExecutor() as pool:
        writing = pool.submit(
            run_driver, "bench.kakao", port=ground.port, talks=True, seconds=seconds, users=[*writers]
        )
        while not (asyncio.run(count_messages(ground)) or writing.done()):
            time.sleep(0.1)
        opened = run_driver("bench.crowd", port=ground.port, hub=ground.hub, streams=STREAMS, users=waiting)
        report = writing.result()
    return [
        ["streams opened, refused", f"{STREAMS}, 0"],
        ["seconds until all were open", opened["opened"]],
        ["round trips of the writers /s", report["callback"]["rate"]],
        ["webhooks of the writers, p50 ms", report["webhook"]["p50"] * 1000],
        ["webhooks of the writers, p99 ms", report["webhook"]["p99"] * 1000],
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5)
    options = parser.parse_args()
    with two_processes() as (ground, other):
        show(
            "A message taken in by one process reaches a stream on",
            COLUMNS,
            measure_deliveries(ground, other, options.rounds, options.seconds),
        )
        show(
            f"{STREAMS:,} streams open at once while {WRITERS} users write",
            ["", ""],
            measure_opening(ground, 2 * options.seconds),
        )


if __name__ == "__main__":
    main()
