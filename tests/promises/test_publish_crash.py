"""Killing the hub or PostgreSQL: every acknowledged event is stored exactly once."""

import asyncio
import os
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import httpx2
import pytest

from pabal.db import embedded
from pabal.db.migrate import apply_migrations
from pabal.hub import DatabaseUrls, open_hub
from pabal.settings import Settings
from pabal.tokens.services import add_service
from support.clusters import open_connection
from support.migrated_server import copy_migrated_server
from support.oauth_client import TESTER, basic, bearer, json_of
from support.pabal_process import RunningHub
from support.wait import POLL_INTERVAL, wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

KILLS = 3
EVENTS_PER_KILL = 150
"""How many events are accepted between two kills."""
CALLERS = 12


@dataclass
class CrashingHub:
    """A durable PostgreSQL, a hub process on it, and a service that publishes through the hub."""

    folder: Path
    server: embedded.EmbeddedServer
    secret: str
    serving: RunningHub | None = None
    accepted: dict[str, str] = field(default_factory=dict)
    """The event id acknowledged for each key."""

    def serve(self) -> RunningHub:
        return RunningHub(self.folder, "serve", PABAL_DATABASE_URL=self.server.address.hub_url)

    async def sign_in(self, web: httpx2.AsyncClient) -> dict[str, str]:
        assert self.serving
        form = {"grant_type": "client_credentials", "refresh": "false"}
        response = await web.post(
            f"{self.serving.address}/oauth/token", data=form, headers=basic(f"shop:{self.secret}".encode())
        )
        return bearer(json_of(response)["access_token"])

    def kill(self) -> None:
        """Kill the hub process."""
        if self.serving:
            self.serving.end(signal.SIGKILL)
            assert self.serving.process.stdout
            self.serving.process.stdout.close()

    async def publish(self, web: httpx2.AsyncClient, key: str, headers: dict[str, str]) -> None:
        """Publish with the same key until the hub responds."""
        event = {"event_type": "order.paid", "target_service": "minu_build", "idempotency_key": key}
        while key not in self.accepted:
            assert self.serving
            try:
                response = await web.post(f"{self.serving.address}/v1/queue/events", json=event, headers=headers)
            except httpx2.TransportError:
                await asyncio.sleep(POLL_INTERVAL)
                continue
            assert response.status_code in {200, 202}, response.text
            self.accepted[key] = response.json()["id"]


@pytest.fixture
def folder() -> Generator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="pabal-publish-"))
    folder.chmod(0o755)
    copy_migrated_server(folder)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
async def crashing_hub(folder: Path) -> AsyncGenerator[CrashingHub]:
    server = await asyncio.to_thread(embedded.start_embedded_server, folder)
    crashing_hub = CrashingHub(folder, server, "")
    try:
        endpoint = server.address
        await apply_migrations(endpoint.owner_url, login="pabal_hub", settings={"pabal.keep_services": "on"})
        settings = Settings(_env_file=None, data_dir=folder / "data")  # pyright: ignore[reportCallIssue]
        async with (
            open_hub(settings, DatabaseUrls(endpoint.hub_url, endpoint.owner_url)) as hub,
            hub.transaction() as tx,
        ):
            _, crashing_hub.secret = await add_service(tx, "shop", ["write"], TESTER)
        yield crashing_hub
    finally:
        crashing_hub.kill()
        crashing_hub.server.stop()


async def test_every_acknowledged_event_is_stored_once(crashing_hub: CrashingHub) -> None:
    """The hub is killed several times under load, and PostgreSQL at the end."""
    crashing_hub.serving = await asyncio.to_thread(crashing_hub.serve)
    numbers, enough = count(), asyncio.Event()
    sent_keys: set[str] = set()

    async def call(web: httpx2.AsyncClient, headers: dict[str, str]) -> None:
        while not enough.is_set():
            key = str(next(numbers))
            sent_keys.add(key)
            await crashing_hub.publish(web, key, headers)

    async with asyncio.timeout(120), httpx2.AsyncClient() as web, asyncio.TaskGroup() as callers:
        headers = await crashing_hub.sign_in(web)
        for _ in range(CALLERS):
            callers.create_task(call(web, headers))
        for _ in range(KILLS):
            accepted_before = len(crashing_hub.accepted)
            await wait_until(
                lambda accepted_before=accepted_before: len(crashing_hub.accepted) >= accepted_before + EVENTS_PER_KILL,
                within=60,
            )
            await asyncio.to_thread(crashing_hub.kill)
            crashing_hub.serving = await asyncio.to_thread(crashing_hub.serve)
        enough.set()
    os.kill(crashing_hub.server.pid, signal.SIGKILL)
    port = crashing_hub.server.address.port
    crashing_hub.server.stop()
    crashing_hub.server = await asyncio.to_thread(embedded.start_embedded_server, crashing_hub.folder, port=port)

    async with open_connection(crashing_hub.server.address.owner_url) as owner:
        rows = await owner.fetch("select idempotency_key, id from public.event_queue where source_service = 'shop'")
    stored = {row["idempotency_key"]: str(row["id"]) for row in rows}
    assert len(crashing_hub.accepted) >= KILLS * EVENTS_PER_KILL
    assert crashing_hub.accepted.keys() == sent_keys
    assert stored == crashing_hub.accepted
    assert Counter(row["idempotency_key"] for row in rows).most_common(1)[0][1] == 1
