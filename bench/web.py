"""Publishing over HTTP: one `pabal serve`, and a driver in a process of its own."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from bench.contestants import ROOT
from bench.peers.stage import BATCH, PAYLOAD
from bench.shop import SERVICE
from pabal.core.actor import Actor
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
    """What the driver saw, and how much of a core it and the hub used meanwhile."""

    rate: float
    p50: float
    p99: float
    driver: float
    hub: float


@dataclass(frozen=True, slots=True)
class Serving:
    """A running `pabal serve`."""

    pid: int
    port: int
    token: str = field(repr=False)

    async def driven(self, path: str, connections: int, seconds: float) -> Driven:
        before = self._used()
        measured = await run_load_driver(
            [sys.executable, "-m", "bench.driver", str(self.port), path, str(connections), str(seconds)],
            msgspec.json.encode({"token": self.token, "body": BODIES[path].decode()}),
        )
        events = BATCH if path == MANY else 1
        hub = (self._used() - before) / measured["spent"]
        return Driven(
            measured["rate"] * events, measured["p50"], measured["p99"], measured["used"] / measured["spent"], hub
        )

    def memory(self) -> float:
        measured = Path(f"/proc/{self.pid}/status").read_text()
        return int(measured.partition("VmHWM:")[2].split()[0]) / 1024

    def _used(self) -> float:
        """Seconds of CPU so far."""
        spent = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return sum(map(int, spent)) / os.sysconf("SC_CLK_TCK")


@asynccontextmanager
async def serving(endpoint: ServerAddress) -> AsyncGenerator[Serving]:
    """Start `pabal serve` with default settings, apart from its log output."""
    token = await access_token(endpoint)
    running = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pabal", "serve", "--port", "0"),
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
        async with hub.transaction() as tx:
            _, secret = await add_service(tx, PUBLISHER, ["write"], BY)
        async with hub.autocommit() as tx:
            client = await authenticate_client(tx, PUBLISHER, secret, BY)
        async with hub.autocommit() as tx:
            return (await issue_tokens(tx, hub.token_issuer, client, client.allowed, BY)).access_token


async def run_load_driver(command: list[str], request: bytes) -> dict[str, float]:
    running = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    measured, _ = await running.communicate(request)
    if running.returncode:
        raise SystemExit(f"the driver gave up: {' '.join(command)}")
    return json.loads(measured)
