"""Publishing over HTTP: one `pabal serve`, and a driver in a process of its own."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from bench.contestants import ROOT
from bench.meter import metered
from bench.peers.stage import BATCH, PAYLOAD
from bench.shop import SERVICE
from pabal.core.actor import Actor
from pabal.core.ids import new_id
from pabal.db.embedded import ServerAddress
from pabal.hub import DatabaseUrls, open_hub
from pabal.settings import Settings
from pabal.tokens.issue import authenticate_client, issue_tokens
from pabal.tokens.services import add_service

PUBLISHER = "bench_publisher"
BY = Actor("bench", "127.0.0.1", "bench", "bench")
EVENT = {"event_type": "order.paid", "target_service": SERVICE, "payload": PAYLOAD}
ONE, MANY = "/v1/queue/events", "/v1/queue/events/batch"
BODIES = {ONE: msgspec.json.encode(EVENT), MANY: msgspec.json.encode({"events": [EVENT] * BATCH})}


@dataclass(frozen=True, slots=True)
class Driven:
    """What the load driver measured, and what an event cost in microseconds of CPU and bytes of WAL."""

    rate: float
    p50: float
    p99: float
    hub: float
    driver: float
    postgres: float
    wal: float


@dataclass(frozen=True, slots=True)
class Serving:
    """A running `pabal serve`."""

    pid: int
    port: int
    token: str = field(repr=False)

    async def driven(self, owner: Any, path: str, connections: int, seconds: float) -> Driven:
        events = BATCH if path == MANY else 1
        async with metered(owner, self.pid) as cost:
            measured = await run_load_driver(
                [sys.executable, "-m", "bench.driver", str(self.port), path, str(connections), str(seconds)],
                msgspec.json.encode({"token": self.token, "body": BODIES[path].decode()}),
            )
        count = measured["requests"] * events
        hub, postgres, wal = cost.per(count)
        driver = measured["used"] / count * 1e6
        return Driven(measured["rate"] * events, measured["p50"], measured["p99"], hub, driver, postgres, wal)


@asynccontextmanager
async def serving(endpoint: ServerAddress, processes: int | None = None) -> AsyncGenerator[Serving]:
    """Start `pabal serve` with default settings, apart from its log output.

    With a number of processes it is a supervisor, whose children serve.
    """
    token = await access_token(endpoint)
    running = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pabal", "serve", "--port", "0"),
        *(("--processes", str(processes)) if processes else ()),
        cwd=ROOT,
        env={**os.environ, "PABAL_DATABASE_URL": endpoint.hub_url},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert running.stdout is not None
    try:
        async with asyncio.timeout(30):
            greeting = await running.stdout.readline()
        yield Serving(running.pid, int(greeting.decode().strip().rpartition(":")[2]), token)
    finally:
        if running.returncode is None:
            running.send_signal(signal.SIGTERM)
        await running.wait()


async def access_token(endpoint: ServerAddress) -> str:
    settings = Settings(_env_file=None)  # pyright: ignore[reportCallIssue]
    async with open_hub(settings, DatabaseUrls(endpoint.hub_url, None)) as hub:
        publisher = f"{PUBLISHER}_{new_id().hex[-8:]}"  # several hubs run in turn
        async with hub.transaction() as tx:
            _, secret = await add_service(tx, publisher, ["write"], BY)
        async with hub.autocommit() as tx:
            client = await authenticate_client(tx, publisher, secret, BY)
        async with hub.autocommit() as tx:
            return (await issue_tokens(tx, hub.token_issuer, client, client.allowed, BY)).access_token


async def run_load_driver(command: list[str], request: bytes) -> dict[str, float]:
    running = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    measured, _ = await running.communicate(request)
    if running.returncode:
        raise SystemExit(f"the load driver failed: {' '.join(command)}")
    return json.loads(measured)
