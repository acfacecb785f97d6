"""The relay under load: webhooks, and whole round trips from the webhook to Kakao's callback."""

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
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import uvloop

from bench.ground import connected, show
from pabal.db import embedded
from pabal.db.embedded.binaries import find_binaries
from pabal.db.migrate import apply_migrations

ROOT = Path(__file__).parent.parent
TICK = os.sysconf("SC_CLK_TCK")
CROWDS = (1, 32, 256)
MOST = 32
"""Clients of pgbench: more of them commit no more."""
STREAMS, POLLS = 2000, 500
APART, TOGETHER = "an account each", "one account"
OPEN = {
    "PABAL_WEBHOOK_PER_CONVERSATION": "0",
    "PABAL_WEBHOOK_PER_CHANNEL": "0",
    "PABAL_CALLBACK_ALLOW": "http://127.0.0.1",
}
"""No limit stands in the way, and callbacks may go to this machine. Everything else is as it comes."""
COUNTED = {"shared_preload_libraries": "pg_stat_statements", "pg_stat_statements.track": "top"}

SHAPE = """
create extension if not exists pg_stat_statements;
create table if not exists bench_insert (id bigint generated always as identity primary key, payload text not null)
"""
SINGLE = f"insert into bench_insert (payload) values ('{'x' * 200}');"
PEOPLE = """
with owners as (
    insert into public.accounts (openclaw_user_id, relay_token_hash, rate_limit_per_minute)
    select name, hash, 100000000 from unnest($1::text[], $2::text[]) as a (name, hash)
    returning id, openclaw_user_id
)
insert into public.conversation_mappings
    (conversation_key, kakao_channel_id, plusfriend_user_key, account_id, state, paired_at)
select c.channel || ':' || c.name, c.channel, c.name, o.id, 'PAIRED', pabal.now()
from unnest($3::text[], $4::text[], $5::text[]) as c (channel, name, owner)
join owners o on o.openclaw_user_id = c.owner
"""
EMPTY = "truncate public.inbound_messages, public.relay_replies, bench_insert cascade; checkpoint"
CALLS = """
select query, calls, total_exec_time as ms from pg_stat_statements
where dbid = (select oid from pg_database where datname = current_database())
"""
STATEMENTS = {
    "webhook: taken in": "with free as",
    "bells rung for other processes": "select pg_notify",
    "message: claimed for its stream": "with asked as",
    "reply: the callback taken": "with brought as",
    "reply: the outcome written down": "with settled as",
}
"""How the statements of a round trip begin."""
ASKED = (("a message reaches its bot", "reached"), ("/health answers", "health"))


@dataclass(frozen=True, slots=True)
class Ground:
    """A running hub, its database, and everybody who may take part."""

    endpoint: embedded.ServerAddress
    pgbench: Path
    hub: int
    postmaster: int
    port: int
    people: Mapping[str, Sequence[dict[str, str]]] = field(repr=False)


@contextmanager
def started() -> Generator[Ground]:
    """A hub as `pabal up` runs it, on a server whose statements are counted; nothing about durability is turned off."""
    folder = Path(tempfile.mkdtemp(prefix="pabal-bench-"))
    folder.chmod(0o755)
    try:
        with embedded.start_embedded_server(folder / "server", options=COUNTED) as server:
            asyncio.run(apply_migrations(server.address.owner_url, login="pabal_hub"))
            people = asyncio.run(enrol(server.address.owner_url))
            with hub_on(server.address, folder) as (pid, port):
                yield Ground(server.address, find_binaries(None).directory / "pgbench", pid, server.pid, port, people)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def hub_on(endpoint: embedded.ServerAddress, folder: Path) -> Generator[tuple[int, int]]:
    database_urls = {"PABAL_DATABASE_URL": endpoint.hub_url, "PABAL_DATABASE_DIRECT_URL": endpoint.owner_url}
    running = subprocess.Popen(
        [sys.executable, "-m", "pabal", "up"],
        cwd=folder,
        env=os.environ | OPEN | database_urls | {"PABAL_PORT": "0", "PABAL_DATA_DIR": str(folder / "hub")},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert running.stdout
    try:
        greeting = running.stdout.readline()
        found = re.search(r":(\d+)$", greeting.strip())
        if not found:
            raise SystemExit("the hub did not start")
        yield running.pid, int(found[1])
    finally:
        running.send_signal(signal.SIGTERM)
        running.communicate()


async def enrol(url: str) -> dict[str, list[dict[str, str]]]:
    """As many users as the largest crowd: once with an account each, once all with one account."""
    most = max(*CROWDS, STREAMS + POLLS)
    tokens = {name: f"prt_{secrets.token_urlsafe(32)}" for name in ("all", *map("owner-{}".format, range(most)))}
    apart = [{"channel": "apart", "user": f"user-{n}", "owner": f"owner-{n}"} for n in range(most)]
    together = [{"channel": "together", "user": f"user-{n}", "owner": "all"} for n in range(max(CROWDS))]
    async with connected(url) as owner:
        await owner.execute(SHAPE)
        await owner.execute(
            PEOPLE,
            [*tokens],
            [hashlib.sha256(token.encode()).hexdigest() for token in tokens.values()],
            *([who[what] for who in apart + together] for what in ("channel", "user", "owner")),
        )
    return {
        kind: [who | {"token": tokens[who["owner"]]} for who in people]
        for kind, people in ((APART, apart), (TOGETHER, together))
    }


# Measuring


@dataclass(frozen=True, slots=True)
class Seen:
    """What the driver saw of one thing, and how many milliseconds of a core everybody spent for each."""

    rate: float
    p50: float
    p99: float
    stream: float
    hub: float
    postgres: float
    driver: float


def played(ground: Ground, kind: str, users: int, seconds: float, *, talks: bool) -> Seen:
    before = used(ground)
    said = told("bench.kakao", port=ground.port, talks=talks, seconds=seconds, users=ground.people[kind][:users])
    hub, postgres = (now - then for now, then in zip(used(ground), before, strict=True))
    what = said["callback" if talks else "webhook"]
    done = what["rate"] * said["seconds"] / 1000
    stream = said["stream"]["p50"] * 1000 if talks else 0.0
    return Seen(
        what["rate"], what["p50"] * 1000, what["p99"] * 1000, stream, hub / done, postgres / done, said["used"] / done
    )


def told(driver: str, **what: object) -> dict[str, Any]:
    """Run a driver, and hear what it saw."""
    ran = subprocess.run(
        [sys.executable, "-m", driver], cwd=ROOT, input=json.dumps(what), capture_output=True, text=True, check=False
    )
    if ran.returncode:
        raise SystemExit(ran.stderr)
    return json.loads(ran.stdout)


def waited(ground: Ground) -> list[list[object]]:
    """What thousands who wait cost, and how soon one of them is reached."""
    users = ground.people[APART][: STREAMS + POLLS]
    seen = told("bench.crowd", port=ground.port, hub=ground.hub, streams=STREAMS, users=users)
    return [
        ["memory before, MB", seen["before"]],
        ["memory with all of them, MB", seen["memory"]],
        ["seconds until all streams were open", seen["opened"]],
        *([f"{what}, {which} ms", seen[key][which] * 1000] for what, key in ASKED for which in ("p50", "p99", "worst")),
    ]


def used(ground: Ground) -> tuple[float, float]:
    """Seconds of a core that the hub has used so far, and its connections to PostgreSQL with all that serves them."""
    running = (int(each.name) for each in Path("/proc").iterdir() if each.name.isdecimal())
    family = [pid for pid in running if parent(pid) == ground.postmaster]
    return cpu(ground.hub), sum(map(cpu, [ground.postmaster, *family]))


def fields(pid: int) -> list[str]:
    """What the kernel says of a process, from its state on; nothing of one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def parent(pid: int) -> int:
    return int((fields(pid) or ["", "0"])[1])


def cpu(pid: int) -> float:
    """Children that have ended count for their parent."""
    return sum(map(int, fields(pid)[11:15])) / TICK


def commits(ground: Ground, clients: int, seconds: float) -> float:
    """pgbench: one insert and one commit, again and again."""
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write(SINGLE)
        script.flush()
        said = subprocess.run(
            [
                *(ground.pgbench, "-n", "-M", "prepared", "-c", str(clients), "-T", str(round(seconds))),
                *("-f", script.name, ground.endpoint.owner_url),
            ],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    found = re.search(r"tps = ([\d.]+)", said)
    assert found, said
    return float(found[1])


async def execute(ground: Ground, statement: str) -> None:
    async with connected(ground.endpoint.owner_url) as owner:
        await owner.execute(statement)


async def counted(ground: Ground, seconds: float) -> list[list[object]]:
    """What one message costs in statements, one user writing alone so that nothing is gathered."""
    await execute(ground, "select pg_stat_statements_reset()")
    seen = await asyncio.to_thread(played, ground, APART, 1, seconds, talks=True)
    messages = seen.rate * seconds
    async with connected(ground.endpoint.owner_url) as owner:
        rows = await owner.fetch(CALLS)
    return [
        [name, sum(row["calls"] for row in of) / messages, sum(row["ms"] for row in of) / messages]
        for name, begins in STATEMENTS.items()
        if (of := [row for row in rows if " ".join(row["query"].split()).startswith(begins)])
    ]


def median(seen: Sequence[Seen]) -> Seen:
    return Seen(*(statistics.median(column) for column in zip(*map(astuple, seen), strict=True)))


async def measure(ground: Ground, rounds: int, seconds: float) -> None:
    seen: dict[tuple[bool, str, int], list[Seen]] = {}
    bare: dict[int, list[float]] = {}
    for _ in range(rounds):
        for users in CROWDS:
            bare.setdefault(users, []).append(await asyncio.to_thread(commits, ground, min(users, MOST), seconds))
            for talks, kind in product((False, True), (APART, TOGETHER)):
                await execute(ground, EMPTY)
                one = await asyncio.to_thread(played, ground, kind, users, seconds, talks=talks)
                seen.setdefault((talks, kind, users), []).append(one)
    base = {users: statistics.median(each) for users, each in bare.items()}
    for talks, title in ((False, "Webhooks"), (True, "Round trips: webhook → stream → reply → callback")):
        blank: list[object] = [""] * 6
        rows = [[f"pgbench, {n} client{'s' * (n > 1)}", base[n], 1.0, *blank] for n in (1, MOST)]
        for (spoke, kind, users), each in seen.items():
            if spoke is talks:
                one = median(each)
                figures = (one.rate, one.rate / base[users], one.p50, one.p99, one.stream or "")
                rows.append([f"{users}, {kind}", *figures, one.hub, one.postgres, one.driver])
        show(title, ["users", "/s", "ratio", "p50 ms", "p99 ms", "stream ms", "hub ms", "pg ms", "driver ms"], rows)
    await execute(ground, EMPTY)
    show("One message in statements", ["", "calls", "ms in the server"], await counted(ground, seconds))
    await execute(ground, EMPTY)
    show(
        f"{STREAMS:,} streams and {POLLS} long polls in one process", ["", ""], await asyncio.to_thread(waited, ground)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5)
    said = parser.parse_args()
    with started() as ground, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(measure(ground, said.rounds, said.seconds))


if __name__ == "__main__":
    main()
