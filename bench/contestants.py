"""The contestants, each in its own process and its own database on the same server."""

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from bench.ground import connected
from bench.peers.stage import PAYLOAD
from pabal.db.embedded import ServerAddress
from pabal.db.queries import Query, parse_queries

HERE = Path(__file__).parent
ROOT = HERE.parent
THEIRS = ROOT / ".venv-bench"
PATIENCE = 300.0
PABAL = "public.event_queue, pabal.event_due, pabal.event_leases, pabal.event_order"

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

    @property
    def ours(self) -> bool:
        return self.database == "pabal"

    @property
    def here(self) -> bool:
        return self.ours or Path(self.command[0]).exists()

    @property
    def aged(self) -> Query | None:
        return AGED.get(self.database)

    def url(self, endpoint: ServerAddress) -> str:
        return endpoint.hub_url if self.ours else self.owner_url(endpoint)

    def owner_url(self, endpoint: ServerAddress) -> str:
        return endpoint.owner_url.removesuffix(f"/{endpoint.database}") + f"/{self.database}"

    async def run_command(
        self, endpoint: ServerAddress, what: str, *numbers: float, **settings: int
    ) -> dict[str, float]:
        """Start the process, send it a command, read its result."""
        running = await asyncio.create_subprocess_exec(
            *self.command,
            self.url(endpoint),
            what,
            *(f"{number:g}" for number in numbers),
            cwd=ROOT,
            env={**os.environ, "PEER_MODULES": str(THEIRS / "node"), "PEER_SETTINGS": json.dumps(settings)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(PATIENCE):
                output, errors = await running.communicate()
        finally:
            if running.returncode is None:
                running.kill()
        if running.returncode:
            raise SystemExit(f"{self.name} {what}: {errors.decode()}")
        return json.loads(output)

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
        """Insert the history that this many finished rows leave behind."""
        if self.aged is None:
            return
        async with connected(self.owner_url(endpoint)) as owner:
            await owner.execute("set session_replication_role = replica")
            payload = msgspec.json.encode(PAYLOAD).decode()
            values: dict[str, Any] = {"rows": rows, "payload": payload}
            await owner.execute(self.aged.sql, *self.aged.bind({name: values[name] for name in self.aged.parameters}))
            await owner.execute(f"vacuum (freeze, analyze) {self.tables}")

    async def tidy(self, endpoint: ServerAddress) -> None:
        """Vacuum and analyze the tables and checkpoint before each drain."""
        async with connected(self.owner_url(endpoint)) as owner:
            await owner.execute(f"vacuum analyze {self.tables}")
            await owner.execute("checkpoint")


def ours(what: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "bench.ours", what)


def python(module: str) -> tuple[str, ...]:
    return (str(THEIRS / "bin" / "python"), "-m", f"bench.peers.{module}")


def node(file: str) -> tuple[str, ...]:
    return (str(THEIRS / "bin" / "node"), str(HERE / "peers" / file))


PGQUEUER = Contestant(
    "pgqueuer 1.6",
    "takes 1,000, a handler each, deletes in batches; keeps three lines of its log a job",
    python("pgqueuer"),
    "pgqueuer",
    "pgqueuer, pgqueuer_log, pgqueuer_statistics",
    transacts=True,
)
CONTESTANTS = (
    Contestant(
        "pabal work",
        "claims 1,000 under a lease, a handler each, settles in batches; rows stay as `completed`",
        ours("work"),
        "pabal",
        PABAL,
        transacts=True,
    ),
    PGQUEUER,
    Contestant(
        "awa-pg 0.6",
        "an engine in Rust; takes 1,000 in two loops, a Python handler each; appends, and drops whole tables later",
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
    ),
    Contestant(
        "graphile-worker 0.18",
        "Node; takes 4,000, a handler each, deletes in batches: nothing stays",
        node("graphile.mjs"),
        "graphile",
        "graphile_worker._private_jobs",
        transacts=True,
    ),
    Contestant(
        "pabal lane",
        "claims 4,000 under a lease and settles them, two loops; rows stay as `completed`",
        ours("lane"),
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
)
