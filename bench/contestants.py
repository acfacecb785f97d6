"""The contestants, each in its own process and its own database on the same server."""

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from bench.ground import connected
from bench.meter import Cost, Run, read_usage
from bench.peers.stage import BATCH, PAYLOAD
from pabal.db.embedded import ServerAddress
from pabal.db.queries import parse_queries

HERE = Path(__file__).parent
ROOT = HERE.parent
PEERS = ROOT / ".venv-bench"
PATIENCE = 300.0
PABAL = "public.event_queue, pabal.event_due, pabal.event_leases, pabal.event_order"

CREATE_ORDERS = "create table if not exists public.bench_orders (id bigserial primary key, item text not null)"
ALLOW_PUBLISHER = """
grant insert on public.bench_orders to pabal_publisher;
grant usage on sequence public.bench_orders_id_seq to pabal_publisher;
do $$ begin create role bench_shop in role pabal_publisher; exception when duplicate_object then null; end $$;
grant bench_shop to pabal_hub;
insert into pabal.service_sql_roles (role_name, service_name) values ('bench_shop', 'minu_find') on conflict do nothing
"""
"""A publisher's own role: it may publish as one service and do nothing else."""

AGED = {query.name: query for query in parse_queries((HERE / "aged.sql").read_text(encoding="utf-8"), "aged.sql")}


@dataclass(frozen=True, slots=True)
class Contestant:
    """A queue implementation, and how to start it."""

    name: str
    says: str
    """What it does with a row, for the results table."""
    command: tuple[str, ...]
    database: str
    tables: str
    """Tables to truncate between rounds and vacuum before each drain; empty if it rotates its tables itself."""
    handles: bool = True
    """Whether it runs a handler for every row, or only claims and settles."""
    transacts: bool = False
    """Whether it can insert a job in the caller's transaction."""
    consumes: bool = False
    """Whether it can run as a publisher and a worker in two processes."""
    settings: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def ours(self) -> bool:
        return self.database == "pabal"

    @property
    def here(self) -> bool:
        return self.ours or Path(self.command[0]).exists()

    @property
    def keeps(self) -> bool:
        """Whether finished jobs leave rows behind."""
        return "keeps none" not in self.says

    def url(self, endpoint: ServerAddress) -> str:
        return endpoint.hub_url if self.ours else self.owner_url(endpoint)

    def owner_url(self, endpoint: ServerAddress) -> str:
        return endpoint.owner_url.removesuffix(f"/{endpoint.database}") + f"/{self.database}"

    def environment(self, settings: Mapping[str, int]) -> dict[str, str]:
        values = json.dumps({**self.settings, **settings})
        return {**os.environ, "PEER_MODULES": str(PEERS / "node"), "PEER_SETTINGS": values}

    async def run_command(
        self, endpoint: ServerAddress, what: str, *numbers: float, **settings: int
    ) -> dict[str, float]:
        """Start the process, send it a command, read its result."""
        return (await self._run(endpoint, what, numbers, settings, None))[0]

    async def run_measured(self, endpoint: ServerAddress, what: str, *numbers: float) -> Run:
        """The same, with the cost of what happens while the clock of the process runs."""
        async with connected(endpoint.owner_url) as owner:
            reported, cost = await self._run(endpoint, what, numbers, {}, owner)
        jobs = max(1, reported["jobs"])
        _, postgres, wal = cost.per(jobs)
        return Run(reported["rate"], reported["cpu"] / jobs * 1e6, postgres, wal, reported)

    async def _run(
        self,
        endpoint: ServerAddress,
        what: str,
        numbers: tuple[float, ...],
        settings: Mapping[str, int],
        owner: Any | None,
    ) -> tuple[dict[str, float], Cost]:
        running = await asyncio.create_subprocess_exec(
            *self.command,
            self.url(endpoint),
            what,
            *(str(number) for number in numbers),
            cwd=ROOT,
            env=self.environment(settings),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert running.stdout is not None
        assert running.stderr is not None
        reading_errors = asyncio.create_task(running.stderr.read())
        cost, before, line = Cost(), Cost(), b""
        try:
            async with asyncio.timeout(PATIENCE):
                async for line in running.stdout:
                    if owner is not None and line == b"begin\n":
                        before = await read_usage(owner)
                    elif owner is not None and line == b"end\n":
                        cost.add_since(before, await read_usage(owner))
                errors = await reading_errors
                await running.wait()
        finally:
            if running.returncode is None:
                running.kill()
        if running.returncode:
            raise SystemExit(f"{self.name} {what}: {errors.decode()}")
        return json.loads(line), cost

    async def install(self, endpoint: ServerAddress) -> None:
        if self.ours:
            return
        async with connected(endpoint.owner_url) as owner:
            if not await owner.fetchval("select exists (select from pg_database where datname = $1)", self.database):
                await owner.execute(f"create database {self.database}")
        await self.run_command(endpoint, "install")

    async def empty(self, endpoint: ServerAddress) -> None:
        if not self.tables:
            return
        async with connected(self.owner_url(endpoint)) as owner:
            await owner.execute(f"truncate {self.tables} cascade")

    async def age(self, endpoint: ServerAddress, rows: int) -> None:
        """Leave behind what this many finished jobs leave: they were put, claimed and finished, not inserted so."""
        if not self.keeps:
            return
        if f"{self.database}_put" in AGED:
            await self._age_in_batches(endpoint, rows)
        else:
            await self.run_command(endpoint, "fill", rows)
            await self.run_command(endpoint, "drain", rows, PATIENCE)

    async def _age_in_batches(self, endpoint: ServerAddress, rows: int) -> None:
        put, start, finish = (AGED[f"{self.database}_{step}"] for step in ("put", "start", "finish"))
        payload = msgspec.json.encode(PAYLOAD).decode()
        async with connected(self.owner_url(endpoint)) as owner:
            for _ in range(0, rows, BATCH):
                jobs = await owner.fetch(put.sql, *put.bind({"payload": payload, "batch": BATCH}))
                for query in (start, finish):
                    await owner.execute(query.sql, [job["id"] for job in jobs])

    async def allow_transactions(self, endpoint: ServerAddress) -> None:
        """Create the caller's own table, and for Pabal the role of a publisher."""
        async with connected(self.owner_url(endpoint)) as owner:
            await owner.execute(CREATE_ORDERS)
            if self.ours:
                await owner.execute(ALLOW_PUBLISHER)

    async def tidy(self, endpoint: ServerAddress) -> None:
        """Vacuum and analyze the tables and checkpoint before each drain."""
        async with connected(self.owner_url(endpoint)) as owner:
            await owner.execute(f"vacuum analyze {self.tables}")
            await owner.execute("checkpoint")


def python(module: str) -> tuple[str, ...]:
    return (str(PEERS / "bin" / "python"), "-m", f"bench.peers.{module}")


def node(file: str) -> tuple[str, ...]:
    return (str(PEERS / "bin" / "node"), str(HERE / "peers" / file))


def program(name: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "bench.ours", name)


PGQUEUER = Contestant(
    "pgqueuer 1.6",
    "takes 1,000, a handler each, deletes in batches; writes three rows of its log per job",
    python("pgqueuer"),
    "pgqueuer",
    "pgqueuer, pgqueuer_log, pgqueuer_statistics",
    transacts=True,
    consumes=True,
)
PABAL_TUNED, PABAL_LANE = "pabal work", "pabal lane"
CONTESTANTS = (
    Contestant(
        PABAL_TUNED,
        "one handler, concurrency 1,000: claims 1,000 under a lease, settles in batches; rows stay as `completed`",
        program("work"),
        "pabal",
        PABAL,
        transacts=True,
        consumes=True,
    ),
    Contestant(
        "pabal work, default settings",
        "the same with the default concurrency of an async handler, 100",
        program("default"),
        "pabal",
        PABAL,
    ),
    PGQUEUER,
    Contestant(
        "awa-pg 0.6",
        "an engine in Rust; takes 1,000 in two loops, a Python handler each; appends, and drops whole tables later: "
        "keeps none",
        python("awa"),
        "awa",
        "",
    ),
    Contestant(
        "chancy 0.26",
        "100 at once, a handler each; writes results once a second; rows stay",
        python("chancy"),
        "chancy",
        "chancy_jobs",
    ),
    Contestant(
        "procrastinate 3.10",
        "takes and finishes one by one, 20 at once; rows stay, three events a job",
        python("procrastinate"),
        "procrastinate",
        "procrastinate_jobs, procrastinate_events",
        transacts=True,
        consumes=True,
    ),
    Contestant(
        "graphile-worker 0.18",
        "Node; takes 4,000, a handler each, deletes in batches: keeps none",
        node("graphile.mjs"),
        "graphile",
        "graphile_worker._private_jobs",
        transacts=True,
        consumes=True,
    ),
    Contestant(
        PABAL_LANE,
        "claims 4,000 under a lease and settles them, two loops; rows stay as `completed`",
        program("lane"),
        "pabal",
        PABAL,
        handles=False,
    ),
    Contestant(
        "pg-boss 12",
        "Node; fetches 4,000 and completes them, three loops; rows stay as `completed`",
        node("pgboss.mjs"),
        "pgboss",
        "pgboss.job",
        handles=False,
        transacts=True,
    ),
    Contestant(
        "pgmq 1.13, archive",
        "reads 4,000 and archives them, two loops; rows move to a second table",
        python("pgmq"),
        "pgmq",
        "pgmq.q_job, pgmq.a_job",
        handles=False,
        transacts=True,
    ),
    Contestant(
        "pgmq 1.13, delete",
        "the same, but deletes what it read",
        python("pgmq"),
        "pgmq",
        "pgmq.q_job, pgmq.a_job",
        handles=False,
        settings={"keep": 0},
    ),
)
