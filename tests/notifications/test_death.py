"""Whoever is killed between the sending and the writing down: Discord has one message, and the request ends once."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator
from datetime import timedelta
from pathlib import Path

import pytest

from pabal.db import embedded
from pabal.db.migrate import apply_migrations
from pabal.hub import DatabaseUrls
from pabal.settings import Settings
from support.clusters import connected
from support.dispatch import Office, all_sent, office
from support.fake_discord import Discord, Fate
from support.receiver import hangs
from support.wait import until

pytestmark = pytest.mark.anyio

MESSENGER = Path(__file__).with_name("messenger.py")
HOLD = timedelta(seconds=30)


@pytest.fixture
def messenger(database_urls: DatabaseUrls, there: Discord, tmp_path: Path) -> "Generator[subprocess.Popen[bytes]]":
    process = subprocess.Popen(
        [sys.executable, MESSENGER, database_urls.main, str(database_urls.direct), tmp_path, there.url],
        env=os.environ | {"PYTHONPATH": str(MESSENGER.parents[1])},
    )
    yield process
    process.kill()
    process.wait()


async def test_killed_after_discord_took_it_and_before_it_was_marked(
    desk: Office, there: Discord, messenger: "subprocess.Popen[bytes]"
) -> None:
    dm = there.dm_of("100")
    await desk.knows(dm)
    there.script.append(Fate(hangs, accepted=True))
    request = await desk.ask()
    await until(lambda: len(there.messages) == 1, within=30)
    messenger.send_signal(signal.SIGKILL)
    messenger.wait()
    assert await desk.state(request) == ("pending", None, 1)

    async with desk.working():
        await desk.travel(HOLD)
        await until(desk.is_idle)

    assert len(there.said_to("100")) == 1
    assert [each.target.rpartition("/")[2] for each in there.requests] == ["messages"] * 2
    assert await desk.state(request) == ("sent", None, 2)
    assert await desk.attempts(request) == [("unknown", 1), ("done", 2)]
    answer = await desk.owner.fetchval(
        "select answer ->> 'message_id' from notification.attempts where outcome = 'done'"
    )
    assert answer == there.messages[0].id


async def nowhere(_by: timedelta) -> None:
    """A server of one's own keeps its time."""


@pytest.fixture
def home() -> Generator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="pabal-death-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


async def test_postgres_is_restarted_in_the_middle(home: Path, settings: Settings, there: Discord) -> None:
    server = embedded.start_embedded_server(home)
    try:
        database_urls = DatabaseUrls(server.address.hub_url, server.address.owner_url)
        await apply_migrations(server.address.owner_url, login="pabal_hub")
        async with office(settings, database_urls, there, nowhere) as desk:
            requests = [await desk.ask(recipient=str(200 + each)) for each in range(60)]
            async with desk.working(concurrency=4, hold=timedelta(seconds=2)):
                await until(lambda: len(there.messages) > 10)
                await asyncio.to_thread(server.stop)
                server = await asyncio.to_thread(embedded.start_embedded_server, home, port=server.address.port)
                async with connected(server.address.owner_url) as owner:
                    await until(lambda: all_sent(owner), within=40)
    finally:
        server.stop()

    assert len(there.messages) == len(requests)
    assert {each.nonce for each in there.messages} == {request.hex[:25] for request in requests}
