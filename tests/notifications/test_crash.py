"""A worker killed between sending and settling: Discord has one message, and the notification ends once."""

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
from support.clusters import open_connection
from support.dispatch import NotificationHub, all_sent, open_notification_hub
from support.fake_discord import FakeDiscord, ScriptedReply
from support.migrated_server import copy_migrated_server
from support.receiver import hang
from support.wait import wait_until

pytestmark = pytest.mark.anyio

DISPATCH_PROCESS = Path(__file__).with_name("dispatch_process.py")
HOLD = timedelta(seconds=30)


@pytest.fixture
def dispatch_process(
    database_urls: DatabaseUrls, discord: FakeDiscord, tmp_path: Path
) -> "Generator[subprocess.Popen[bytes]]":
    process = subprocess.Popen(
        [sys.executable, DISPATCH_PROCESS, database_urls.main, str(database_urls.direct), tmp_path, discord.url],
        env=os.environ | {"PYTHONPATH": str(DISPATCH_PROCESS.parents[1])},
    )
    yield process
    process.kill()
    process.wait()


async def test_a_worker_killed_after_discord_accepted_sends_no_second_message(
    notifier: NotificationHub, discord: FakeDiscord, dispatch_process: "subprocess.Popen[bytes]"
) -> None:
    dm = discord.dm_channel_of("100")
    await notifier.save_dm_channel(dm)
    discord.script.append(ScriptedReply(hang, accepted=True))
    request = await notifier.request()
    await wait_until(lambda: len(discord.messages) == 1, within=30)
    dispatch_process.send_signal(signal.SIGKILL)
    dispatch_process.wait()
    assert await notifier.state(request) == ("pending", None, 1)

    async with notifier.run_worker():
        await notifier.travel(HOLD)
        await wait_until(notifier.is_idle)

    assert len(discord.messages_to("100")) == 1
    assert [call.target.rpartition("/")[2] for call in discord.requests] == ["messages"] * 2
    assert await notifier.state(request) == ("sent", None, 2)
    assert await notifier.attempts(request) == [("unknown", 1), ("done", 2)]
    message_id = await notifier.owner.fetchval(
        "select answer ->> 'message_id' from notification.attempts where outcome = 'done'"
    )
    assert message_id == discord.messages[0].id


async def no_travel(_duration: timedelta) -> None:
    """Do nothing: the tests cannot move the time of this server."""


@pytest.fixture
def data_dir() -> Generator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="pabal-restart-"))
    folder.chmod(0o755)
    copy_migrated_server(folder)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


async def test_a_restart_of_postgres_loses_nothing(data_dir: Path, settings: Settings, discord: FakeDiscord) -> None:
    server = embedded.start_embedded_server(data_dir)
    try:
        database_urls = DatabaseUrls(server.address.hub_url, server.address.owner_url)
        await apply_migrations(server.address.owner_url, login="pabal_hub", settings={"pabal.keep_services": "on"})
        async with open_notification_hub(settings, database_urls, discord, no_travel) as notifier:
            requests = [await notifier.request(recipient=str(200 + number)) for number in range(60)]
            async with notifier.run_worker(concurrency=4, hold=timedelta(seconds=2)):
                await wait_until(lambda: len(discord.messages) > 10)
                await asyncio.to_thread(server.stop)
                server = await asyncio.to_thread(embedded.start_embedded_server, data_dir, port=server.address.port)
                async with open_connection(server.address.owner_url) as owner:
                    await wait_until(lambda: all_sent(owner), within=40)
    finally:
        server.stop()

    assert len(discord.messages) == len(requests)
    assert {message.nonce for message in discord.messages} == {request.hex[:25] for request in requests}
