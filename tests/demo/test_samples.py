"""The sample services of `pabal demo`: within a minute every page of the console has data."""

import re
import time
from functools import partial
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import httpx2
import pytest

from pabal.cli.database_settings import DatabaseSettings
from pabal.cli.target import running_target
from support.clusters import Connection, open_connection
from support.demo_process import read_page_events, run_demo, sign_in
from support.pabal_process import fresh_folder, remaining_processes
from support.wait import wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

WITHIN = 60.0
LIFE = {
    "events are done": "select count(*) > 10 from public.event_queue where status = 'completed'",
    "a broadcast reaches several": (
        "select count(distinct target_service) > 2 from public.event_queue where parent_id is not null"
    ),
    "an event is tried again": (
        "select count(*) > 0 from public.event_queue where retry_count > 0 and processed_at is null"
    ),
    "letters die in groups": "select count(distinct signature) > 3 from public.dead_letter_queue",
    "a subscription is paused": "select count(*) = 1 from pabal.subscriptions where paused_at is not null",
    "a receiver is gone": "select count(*) = 1 from pabal.subscriptions where disabled_at is not null",
    "a handler is at work": "select count(*) = 1 from pabal.subscriptions where mode = 'handler'",
    "notices are sent": "select count(*) > 3 from notification.requests where state = 'sent'",
    "one is planned": "select count(*) > 0 from notification.requests where state = 'pending'",
    "some are held back, each for its reason": (
        "select array_agg(distinct reason) @> '{dm_disabled,category_off,address_unhealthy,storm}'"
        " from notification.requests where state = 'suppressed'"
    ),
    "one is refused": "select count(*) > 0 from notification.requests where state = 'failed'",
    "a user is paired": "select count(*) = 1 from public.conversation_mappings where state = 'PAIRED'",
    "and answered": "select count(*) > 0 from public.relay_replies where state = 'sent'",
    "tokens are in use": "select count(*) > 1 from public.token_families",
}


async def test_every_page_of_the_console_has_data_and_nothing_is_left() -> None:
    with fresh_folder() as folder:
        kept = folder / "kept"
        with run_demo(folder, "--data-dir", str(kept), "--language", "en") as demo:
            database_urls = running_target(DatabaseSettings(kept)).urls
            async with open_connection(database_urls.main) as db:
                assert await lacking(db) == []
            assert sign_in(demo.console, demo.password) == 303
            assert '"code":"' in read_page_events(demo.chat, until='"code":"')
            link = urlsplit(demo.person)
            with httpx2.Client(headers={"origin": f"{link.scheme}://{link.netloc}"}) as web:
                mine = web.post(demo.person, data=dict(parse_qsl(link.query)), follow_redirects=True)
            assert (mine.status_code, urlsplit(str(mine.url)).path) == (200, "/me")
            assert "결제 완료" in mine.text
            demo.end()
            assert demo.process.returncode == 0
        assert demo.log.read_text() == ""
        assert remaining_processes(folder) == []
        again(folder, kept, demo.password)


async def lacking(db: Connection) -> list[str]:
    """The checks that are still unmet after a minute."""
    over = time.monotonic() + WITHIN
    missed: list[str] = []
    for name, sign in LIFE.items():
        try:
            await wait_until(partial(shows, db, sign), within=max(over - time.monotonic(), 1))
        except TimeoutError:
            missed.append(name)
    return missed


async def shows(db: Connection, sign: str) -> bool:
    return bool(await db.fetchval(sign))


def again(folder: Path, kept: Path, password: str) -> None:
    """A kept database can be used again."""
    with run_demo(folder, "--data-dir", str(kept)) as demo:
        assert demo.password == "of the first start"
        assert sign_in(demo.console, password) == 303
        assert re.search(r"/me\?token=pbp_", demo.person)
        demo.end()
        assert demo.process.returncode == 0
    assert demo.log.read_text() == ""
