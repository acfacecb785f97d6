"""Whoever was told that its event is published finds it there, once, whoever was killed meanwhile."""

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
from support.clusters import connected
from support.oauth_client import TESTER, basic, bearer, good
from support.pabal_process import Running
from support.wait import PAUSE, until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

DEATHS = 3
BETWEEN = 150
"""How many events are accepted before the next death."""
CALLERS = 12


@dataclass
class House:
    """A durable PostgreSQL of the test's own, and a service that publishes through whoever serves on it."""

    folder: Path
    server: embedded.EmbeddedServer
    secret: str
    serving: Running | None = None
    accepted: dict[str, str] = field(default_factory=dict)
    """The id each key was answered with."""

    def serve(self) -> Running:
        return Running(self.folder, "serve", PABAL_DATABASE_URL=self.server.address.hub_url)

    async def sign_in(self, web: httpx2.AsyncClient) -> dict[str, str]:
        assert self.serving
        form = {"grant_type": "client_credentials", "refresh": "false"}
        answer = await web.post(
            f"{self.serving.address}/oauth/token", data=form, headers=basic(f"shop:{self.secret}".encode())
        )
        return bearer(good(answer)["access_token"])

    def kill(self) -> None:
        """End who serves, now."""
        if self.serving:
            self.serving.end(signal.SIGKILL)
            assert self.serving.process.stdout
            self.serving.process.stdout.close()

    async def publish(self, web: httpx2.AsyncClient, key: str, headers: dict[str, str]) -> None:
        """Say it until it is heard, with the same key each time, as anybody would whose connection broke."""
        event = {"event_type": "order.paid", "target_service": "minu_build", "idempotency_key": key}
        while key not in self.accepted:
            assert self.serving
            try:
                answer = await web.post(f"{self.serving.address}/v1/queue/events", json=event, headers=headers)
            except httpx2.TransportError:
                await asyncio.sleep(PAUSE)
                continue
            assert answer.status_code in {200, 202}, answer.text
            self.accepted[key] = answer.json()["id"]


@pytest.fixture
def folder() -> Generator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="pabal-publish-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
async def house(folder: Path) -> AsyncGenerator[House]:
    server = await asyncio.to_thread(embedded.start_embedded_server, folder)
    house = House(folder, server, "")
    try:
        endpoint = server.address
        await apply_migrations(endpoint.owner_url, login="pabal_hub")
        settings = Settings(_env_file=None, data_dir=folder / "data")  # pyright: ignore[reportCallIssue]
        async with (
            open_hub(settings, DatabaseUrls(endpoint.hub_url, endpoint.owner_url)) as hub,
            hub.transaction() as tx,
        ):
            _, house.secret = await add_service(tx, "shop", ["write"], TESTER)
        yield house
    finally:
        house.kill()
        house.server.stop()


async def test_every_event_that_was_answered_for_is_there_once(house: House) -> None:
    """The server is killed in the middle of its work again and again, and PostgreSQL at the end."""
    house.serving = await asyncio.to_thread(house.serve)
    numbers, enough = count(), asyncio.Event()
    tried: set[str] = set()

    async def call(web: httpx2.AsyncClient, headers: dict[str, str]) -> None:
        while not enough.is_set():
            key = str(next(numbers))
            tried.add(key)
            await house.publish(web, key, headers)

    async with asyncio.timeout(120), httpx2.AsyncClient() as web, asyncio.TaskGroup() as callers:
        headers = await house.sign_in(web)
        for _ in range(CALLERS):
            callers.create_task(call(web, headers))
        for _ in range(DEATHS):
            heard = len(house.accepted)
            await until(lambda heard=heard: len(house.accepted) >= heard + BETWEEN, within=60)
            await asyncio.to_thread(house.kill)
            house.serving = await asyncio.to_thread(house.serve)
        enough.set()
    os.kill(house.server.pid, signal.SIGKILL)
    port = house.server.address.port
    house.server.stop()
    house.server = await asyncio.to_thread(embedded.start_embedded_server, house.folder, port=port)

    async with connected(house.server.address.owner_url) as owner:
        rows = await owner.fetch("select idempotency_key, id from public.event_queue where source_service = 'shop'")
    kept = {row["idempotency_key"]: str(row["id"]) for row in rows}
    assert len(house.accepted) >= DEATHS * BETWEEN
    assert house.accepted.keys() == tried
    assert kept == house.accepted
    assert Counter(row["idempotency_key"] for row in rows).most_common(1)[0][1] == 1
