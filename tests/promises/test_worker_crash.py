"""Killing a worker or PostgreSQL: accepted events survive, are retried, and complete once."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import asyncpg
import pytest

from pabal.core.errors import Unavailable
from pabal.core.ids import new_id
from pabal.db import embedded
from pabal.db.migrate import apply_migrations
from pabal.db.queries import parse_queries
from pabal.db.tx import Tx
from pabal.events.consume.lane import ClaimedEvent
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.queue.batcher import Batcher
from pabal.queue.outcome import DONE, Outcome
from pabal.settings import Settings
from support.clusters import open_connection
from support.lane_under_test import Events, Travel
from support.migrated_server import copy_migrated_server
from support.wait import POLL_INTERVAL, wait_until
from support.worker import run_worker, wait_for_states

pytestmark = pytest.mark.anyio

STUCK_WORKER = Path(__file__).with_name("stuck_worker.py")
BEFORE, AFTER = 200, 200
"""How many events are accepted before the server stops, and after it is back."""

[PUT, EFFECT] = parse_queries("""
-- name: put
insert into public.event_queue (id, event_type, source_service, target_service)
select unnest(:ids::uuid[]), 'order.paid', 'minu_find', 'minu_build'
-- name: effect
insert into public.effects (event) values (:event) on conflict (event) do update set times = effects.times + 1
""")

RECORD_COMPLETIONS = """
create table public.effects (event uuid primary key, times integer not null default 1);
create table public.ends (event uuid primary key);
create function public.witness() returns trigger language plpgsql as
    'begin insert into public.ends values (new.id); return null; end';
create trigger witness after update on public.event_queue for each row
    when (new.status = 'completed' and old.status <> 'completed') execute function public.witness();
grant select, insert, update on public.effects, public.ends to service_role;
"""
"""Records each completion in its transaction; a second one would violate the primary key."""


class TestKilledWorker:
    @pytest.fixture
    async def events(self, hub: Hub, database_urls: DatabaseUrls, travel: Travel) -> AsyncGenerator[Events]:
        assert database_urls.direct
        async with open_connection(database_urls.direct) as owner:
            yield Events(hub, owner, travel)

    @pytest.fixture
    def stuck_worker(self, database_urls: DatabaseUrls, tmp_path: Path) -> "Generator[subprocess.Popen[str]]":
        process = subprocess.Popen(
            [sys.executable, STUCK_WORKER, database_urls.main, str(database_urls.direct), tmp_path],
            stdout=subprocess.PIPE,
            text=True,
        )
        yield process
        process.kill()
        process.wait()
        assert process.stdout
        process.stdout.close()

    async def test_an_event_of_a_killed_worker_is_retried_after_its_lease_and_completes_once(
        self, hub: Hub, events: Events, stuck_worker: "subprocess.Popen[str]"
    ) -> None:
        [event] = await events.put()
        assert stuck_worker.stdout
        assert (await asyncio.to_thread(stuck_worker.stdout.readline)).strip() == str(event)
        stuck_worker.send_signal(signal.SIGKILL)
        stuck_worker.wait()
        handled: list[ClaimedEvent] = []

        async def handle(claimed: ClaimedEvent) -> Outcome:
            handled.append(claimed)
            return DONE

        async with run_worker(hub, handle, poll_interval=timedelta(milliseconds=20)):
            await events.travel(seconds=59)
            assert await events.claim() == []
            await events.travel(seconds=1)
            await wait_for_states(events, completed=1)

        assert [(claimed.id, claimed.attempt) for claimed in handled] == [(event, 2)]
        history = await events.owner.fetchval("select error_history::text from public.event_queue")
        assert '"code": "lease_expired"' in history
        assert '"worker": "stuck"' in history


@dataclass
class DurableServer:
    """A durable PostgreSQL that can be killed and restarted at the same address."""

    home: Path
    server: embedded.EmbeddedServer

    def kill(self) -> None:
        os.kill(self.server.pid, signal.SIGKILL)
        self.server.stop()

    def stop(self) -> None:
        self.server.stop()

    async def start(self) -> None:
        port = self.server.address.port
        self.server = await asyncio.to_thread(embedded.start_embedded_server, self.home, port=port)


class TestLostServer:
    @pytest.fixture
    def database(self) -> Generator[DurableServer]:
        home = Path(tempfile.mkdtemp(prefix="pabal-crash-"))
        home.chmod(0o755)
        copy_migrated_server(home)
        database = DurableServer(home, embedded.start_embedded_server(home))
        try:
            yield database
        finally:
            database.server.stop()
            shutil.rmtree(home, ignore_errors=True)

    @pytest.fixture
    async def hub(self, database: DurableServer, settings: Settings) -> AsyncGenerator[Hub]:
        endpoint = database.server.address
        await apply_migrations(endpoint.owner_url, login="pabal_hub", settings={"pabal.keep_services": "on"})
        async with open_connection(endpoint.owner_url) as owner:
            await owner.execute(RECORD_COMPLETIONS)
        async with open_hub(settings, DatabaseUrls(endpoint.hub_url, endpoint.owner_url)) as hub:
            yield hub

    @pytest.mark.parametrize("take_down", [DurableServer.kill, DurableServer.stop], ids=["killed", "restarted"])
    async def test_every_accepted_event_survives_and_completes_once(
        self, database: DurableServer, hub: Hub, take_down: Callable[[DurableServer], None]
    ) -> None:
        """The same worker and batcher go on before, during and after the outage."""
        accepted: set[UUID] = set()
        enough = asyncio.Event()

        async def put(tx: Tx, ids: Sequence[UUID]) -> Sequence[UUID]:
            await tx.run(PUT, ids=[*ids])
            return ids

        batcher = Batcher[UUID, UUID](hub.db, put)

        async def publish() -> None:
            while not enough.is_set():
                try:
                    accepted.add(await batcher.put(new_id()))
                except Unavailable:
                    await asyncio.sleep(POLL_INTERVAL)  # a client would retry as well

        async def handle(event: ClaimedEvent) -> Outcome:
            async with hub.autocommit() as tx:
                await tx.run(EFFECT, event=event.id)
            return DONE

        async with (
            asyncio.timeout(60),
            run_worker(
                hub, handle, concurrency=20, hold=timedelta(seconds=2), poll_interval=timedelta(milliseconds=50)
            ),
            asyncio.TaskGroup() as publishers,
        ):
            for _ in range(8):
                publishers.create_task(publish())
            await wait_until(lambda: len(accepted) > BEFORE)
            await asyncio.to_thread(take_down, database)
            survived = len(accepted)
            await database.start()
            await wait_until(lambda: len(accepted) > survived + AFTER, within=20)
            enough.set()
            async with open_connection(database.server.address.owner_url) as owner:
                await wait_until(lambda: all_ended(owner), within=30)

        async with open_connection(database.server.address.owner_url) as owner:
            ended = {row["event"] for row in await owner.fetch("select event from public.ends")}
            assert accepted <= ended
            assert {row["event"] for row in await owner.fetch("select event from public.effects")} == ended
            assert {row["id"] for row in await owner.fetch("select id from public.event_queue")} == ended


async def all_ended(owner: "asyncpg.Connection[asyncpg.Record]") -> bool:
    return await owner.fetchval("select count(*) from public.event_queue where status <> 'completed'") == 0
