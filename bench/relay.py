"""Benchmark of the relay: webhooks, and round trips from the webhook to Kakao's callback."""

import argparse
import asyncio
import hashlib
import json
import os
import re
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import astuple, dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import uvloop

from bench.ground import connected, paced, show
from bench.wire import WEBHOOK_SECRET
from pabal.db import embedded
from pabal.db.embedded.binaries import find_binaries
from pabal.db.migrate import apply_migrations

ROOT = Path(__file__).parent.parent
TICK = os.sysconf("SC_CLK_TCK")
USER_COUNTS = (1, 32, 256)
MAX_PGBENCH_CLIENTS = 32
"""More clients do not commit more."""
STREAMS, POLLS = 2000, 500
SEPARATE, SHARED = "an account each", "one account"
HUB_ENVIRONMENT = {
    "PABAL_WEBHOOK_SECRET": WEBHOOK_SECRET,
    "PABAL_WEBHOOK_PER_CONVERSATION": "0",
    "PABAL_WEBHOOK_PER_CHANNEL": "0",
    "PABAL_CALLBACK_ALLOW": "http://127.0.0.1",
    "PABAL_CONNECTIONS_PER_ADDRESS": "0",
}
"""No limits for the one address of the driver; callbacks to this machine are allowed. Everything else is default."""
SERVER_OPTIONS = {"shared_preload_libraries": "pg_stat_statements", "pg_stat_statements.track": "top"}

CREATE_TABLES = """
create extension if not exists pg_stat_statements;
create table if not exists bench_insert (id bigint generated always as identity primary key, payload text not null)
"""
SINGLE_INSERT = f"insert into bench_insert (payload) values ('{'x' * 200}');"
INSERT_USERS = """
with owners as (
    insert into public.accounts (openclaw_user_id, relay_token_hash, rate_limit_per_minute, answer_mode)
    select name, hash, 100000000, 'callback' from unnest($1::text[], $2::text[]) as a (name, hash)
    returning id, openclaw_user_id
)
insert into public.conversation_mappings
    (conversation_key, kakao_channel_id, plusfriend_user_key, account_id, state, paired_at)
select c.channel || ':' || c.name, c.channel, c.name, o.id, 'PAIRED', pabal.now()
from unnest($3::text[], $4::text[], $5::text[]) as c (channel, name, owner)
join owners o on o.openclaw_user_id = c.owner
"""
TRUNCATE = "truncate public.inbound_messages, public.relay_replies, bench_insert cascade; checkpoint"
SELECT_CALLS = """
select query, calls, total_exec_time as ms from pg_stat_statements
where dbid = (select oid from pg_database where datname = current_database())
"""
COUNT_HUB_CALLS = """
select coalesce(sum(calls), 0)::bigint from pg_stat_statements
where dbid = (select oid from pg_database where datname = current_database()) and userid = 'pabal_hub'::regrole
"""
STATEMENTS = {
    "webhook: store": "with unlocked as",
    "notify other processes": "select pg_notify",
    "message: claim for the stream, if not handed over": "with requests as",
    "reply: claim the callback": "with replies as",
    "reply: settle the callback": "with settled as",
}
"""The beginning of each statement of a round trip."""
COLUMNS = ["users", "/s", "ratio", "p50 ms", "p99 ms", "stream ms", "statements", "hub ms", "pg ms", "driver ms"]
"""The ratio is that to the commits of the same number of clients; statements and CPU time are per message."""
LATENCIES = (("webhook while they open", "webhook"), ("message to its bot", "delivery"), ("/health", "health"))


@dataclass(frozen=True, slots=True)
class Ground:
    """A running hub, its database and the simulated users."""

    endpoint: embedded.ServerAddress
    pgbench: Path
    hub: int
    postmaster: int
    port: int
    users: Mapping[str, Sequence[dict[str, str]]] = field(repr=False)


@contextmanager
def started() -> Generator[Ground]:
    """A hub as `pabal up` runs it, on a server with pg_stat_statements and full durability."""
    folder = Path(tempfile.mkdtemp(prefix="pabal-bench-"))
    folder.chmod(0o755)
    try:
        with embedded.start_embedded_server(folder / "server", options=SERVER_OPTIONS) as server:
            asyncio.run(apply_migrations(server.address.owner_url, login="pabal_hub"))
            users = asyncio.run(create_users(server.address.owner_url))
            with hub_on(server.address, folder) as (pid, port):
                yield Ground(server.address, find_binaries(None).directory / "pgbench", pid, server.pid, port, users)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def hub_on(endpoint: embedded.ServerAddress, folder: Path) -> Generator[tuple[int, int]]:
    database_urls = {"PABAL_DATABASE_URL": endpoint.hub_url, "PABAL_DATABASE_DIRECT_URL": endpoint.owner_url}
    running = subprocess.Popen(
        [sys.executable, "-m", "pabal", "up"],
        cwd=folder,
        env=os.environ | HUB_ENVIRONMENT | database_urls | {"PABAL_PORT": "0", "PABAL_DATA_DIR": str(folder / "hub")},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert running.stdout
    try:
        first_line = running.stdout.readline()
        port = re.search(r":(\d+)\Z", first_line.strip())
        if not port:
            raise SystemExit("the hub did not start")
        yield running.pid, int(port[1])
    finally:
        running.send_signal(signal.SIGTERM)
        running.communicate()


async def create_users(url: str) -> dict[str, list[dict[str, str]]]:
    """As many users as the largest run needs, once with an account each and once all with one account."""
    user_count = max(*USER_COUNTS, STREAMS + POLLS)
    tokens = {name: f"prt_{secrets.token_urlsafe(32)}" for name in ("all", *map("owner-{}".format, range(user_count)))}
    separate = [{"channel": "separate", "user": f"user-{n}", "owner": f"owner-{n}"} for n in range(user_count)]
    shared = [{"channel": "shared", "user": f"user-{n}", "owner": "all"} for n in range(max(USER_COUNTS))]
    async with connected(url) as owner:
        await owner.execute(CREATE_TABLES)
        await owner.execute(
            INSERT_USERS,
            [*tokens],
            [hashlib.sha256(token.encode()).hexdigest() for token in tokens.values()],
            *([user[column] for user in separate + shared] for column in ("channel", "user", "owner")),
        )
    return {
        kind: [user | {"token": tokens[user["owner"]]} for user in users]
        for kind, users in ((SEPARATE, separate), (SHARED, shared))
    }


# Measuring


@dataclass(frozen=True, slots=True)
class RunResult:
    """Rate and latencies of one run; the hub's statements and the CPU milliseconds of each process per message."""

    rate: float
    p50: float
    p99: float
    stream: float
    statements: float
    hub: float
    postgres: float
    driver: float


@dataclass(frozen=True, slots=True)
class CommitResult:
    """Rate of single inserts, each with a commit; mean latency and PostgreSQL's CPU milliseconds for one."""

    rate: float
    latency: float
    postgres: float


def run_once(ground: Ground, kind: str, users: int, seconds: float, *, talks: bool) -> RunResult:
    calls_before = asyncio.run(count_calls(ground))
    before = cpu_seconds(ground)
    report = run_driver("bench.kakao", port=ground.port, talks=talks, seconds=seconds, users=ground.users[kind][:users])
    hub, postgres = (now - then for now, then in zip(cpu_seconds(ground), before, strict=True))
    step = report["callback" if talks else "webhook"]
    thousands = step["rate"] * report["seconds"] / 1000
    stream = report["stream"]["p50"] * 1000 if talks else 0.0
    return RunResult(
        step["rate"],
        step["p50"] * 1000,
        step["p99"] * 1000,
        stream,
        (asyncio.run(count_calls(ground)) - calls_before) / thousands / 1000,
        hub / thousands,
        postgres / thousands,
        report["used"] / thousands,
    )


def run_driver(module: str, **options: object) -> dict[str, Any]:
    """Run a driver process and return its report."""
    process = subprocess.run(
        [sys.executable, "-m", module], cwd=ROOT, input=json.dumps(options), capture_output=True, text=True, check=False
    )
    if process.returncode:
        raise SystemExit(process.stderr)
    return json.loads(process.stdout)


def measure_idle_bots(ground: Ground) -> list[list[object]]:
    """The cost of thousands of idle bots, and the latency of a message to one of them."""
    users = ground.users[SEPARATE][: STREAMS + POLLS]
    report = run_driver("bench.crowd", port=ground.port, hub=ground.hub, streams=STREAMS, users=users)
    return [
        ["memory before, MB", report["memory_before"]],
        ["memory with all bots, MB", report["memory"]],
        ["seconds to open all streams at once", report["opened"]],
        *(
            [f"{label}, {quantile} ms", report[key][quantile] * 1000]
            for label, key in LATENCIES
            for quantile in ("p50", "p99", "worst")
        ),
    ]


def cpu_seconds(ground: Ground) -> tuple[float, float]:
    """CPU seconds of the hub and of PostgreSQL with all its processes so far."""
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
    backends = [pid for pid in pids if parent_pid(pid) == ground.postmaster]
    return process_cpu(ground.hub), sum(map(process_cpu, [ground.postmaster, *backends]))


def stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name; empty if the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def parent_pid(pid: int) -> int:
    return int((stat_fields(pid) or ["", "0"])[1])


def process_cpu(pid: int) -> float:
    """CPU seconds, including those of ended children."""
    return sum(map(int, stat_fields(pid)[11:15])) / TICK


def measure_commits(ground: Ground, clients: int, seconds: float) -> CommitResult:
    """What PostgreSQL does at best with one insert and one commit at a time, in as many connections."""
    _, before = cpu_seconds(ground)
    run = run_pgbench if ground.pgbench.exists() else run_insert_loop
    rate = run(ground, clients, seconds)
    _, after = cpu_seconds(ground)
    return CommitResult(rate, clients / rate * 1000, (after - before) / (rate * seconds) * 1000)


def run_pgbench(ground: Ground, clients: int, seconds: float) -> float:
    """Transactions per second."""
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write(SINGLE_INSERT)
        script.flush()
        output = subprocess.run(
            [
                *(ground.pgbench, "-n", "-M", "prepared", "-c", str(clients), "-T", str(round(seconds))),
                *("-f", script.name, ground.endpoint.owner_url),
            ],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    rate = re.search(r"tps = ([\d.]+)", output)
    assert rate, output
    return float(rate[1])


def run_insert_loop(ground: Ground, clients: int, seconds: float) -> float:
    """The same from this process, where the server's binaries come without pgbench."""

    async def insert() -> float:
        async with AsyncExitStack() as stack:
            url = ground.endpoint.owner_url
            connections = [await stack.enter_async_context(connected(url)) for _ in range(clients)]
            return (await paced([partial(each.fetch, SINGLE_INSERT) for each in connections], seconds)).rate

    return asyncio.run(insert())


async def count_calls(ground: Ground) -> int:
    """How many statements the hub has executed."""
    async with connected(ground.endpoint.owner_url) as owner:
        return await owner.fetchval(COUNT_HUB_CALLS)


async def execute(ground: Ground, statement: str) -> None:
    async with connected(ground.endpoint.owner_url) as owner:
        await owner.execute(statement)


async def count_statements(ground: Ground, seconds: float) -> list[list[object]]:
    """Statements per message, with a single user so that nothing is batched."""
    await execute(ground, "select pg_stat_statements_reset()")
    result = await asyncio.to_thread(run_once, ground, SEPARATE, 1, seconds, talks=True)
    messages = result.rate * seconds
    async with connected(ground.endpoint.owner_url) as owner:
        rows = await owner.fetch(SELECT_CALLS)
    return [
        [name, sum(row["calls"] for row in matching) / messages, sum(row["ms"] for row in matching) / messages]
        for name, beginning in STATEMENTS.items()
        if (matching := [row for row in rows if " ".join(row["query"].split()).startswith(beginning)])
    ]


def median_commits(results: Sequence[CommitResult]) -> CommitResult:
    return CommitResult(*(statistics.median(column) for column in zip(*map(astuple, results), strict=True)))


def median_result(results: Sequence[RunResult]) -> RunResult:
    return RunResult(*(statistics.median(column) for column in zip(*map(astuple, results), strict=True)))


async def measure(ground: Ground, rounds: int, seconds: float) -> None:
    results: dict[tuple[bool, str, int], list[RunResult]] = {}
    commits: dict[int, list[CommitResult]] = {}
    for _ in range(rounds):
        for users in USER_COUNTS:
            clients = min(users, MAX_PGBENCH_CLIENTS)
            commits.setdefault(users, []).append(await asyncio.to_thread(measure_commits, ground, clients, seconds))
            for talks, kind in product((False, True), (SEPARATE, SHARED)):
                await execute(ground, TRUNCATE)
                result = await asyncio.to_thread(run_once, ground, kind, users, seconds, talks=talks)
                results.setdefault((talks, kind, users), []).append(result)
    base = {users: median_commits(runs) for users, runs in commits.items()}
    name = "pgbench" if ground.pgbench.exists() else "insert loop"
    for talks, title in ((False, "Webhooks"), (True, "Round trips: webhook → stream → reply → callback")):
        rows: list[list[object]] = [
            [
                *(f"{name}, {n} client{'s' * (n > 1)}", base[n].rate, 1.0, base[n].latency),
                *("", "", 1.0, "", base[n].postgres, ""),
            ]
            for n in (1, MAX_PGBENCH_CLIENTS)
        ]
        for (run_talks, kind, users), runs in results.items():
            if run_talks is talks:
                run = median_result(runs)
                latencies = (run.p50, run.p99, run.stream or "")
                cpu = (run.hub, run.postgres, run.driver)
                ratio = run.rate / base[users].rate
                rows.append([f"{users}, {kind}", run.rate, ratio, *latencies, run.statements, *cpu])
        show(title, COLUMNS, rows)
    await execute(ground, TRUNCATE)
    show("Statements per message", ["", "calls", "ms in the server"], await count_statements(ground, seconds))
    await execute(ground, TRUNCATE)
    show(
        f"{STREAMS:,} streams and {POLLS} long polls in one process",
        ["", ""],
        await asyncio.to_thread(measure_idle_bots, ground),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5)
    options = parser.parse_args()
    with started() as ground, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(measure(ground, options.rounds, options.seconds))


if __name__ == "__main__":
    main()
