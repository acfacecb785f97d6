"""`pabal work --app`: a program handles events published by SQL and HTTP until SIGTERM."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import httpx2
import pytest

from pabal.cli.events.handlers_app import load_handlers
from pabal.core.errors import SetupError
from pabal.hub import DatabaseUrls, Hub
from pabal.settings import Settings
from support.clusters import Connection
from support.event_api import connect_service
from support.pabal_process import PABAL, PROCESS_TIMEOUT, environment
from support.subscriptions import load_event
from support.wait import wait_until

pytestmark = pytest.mark.anyio

PROGRAM = """
import json
import threading
from pathlib import Path

from pabal_client import App, Dead, Event, Retry

hub = App("minu_build")


def note(event: Event) -> None:
    with Path("seen").open("a") as file:
        file.write(json.dumps([event.event_type, event.payload, event.attempt, event.source_service]) + "\\n")


@hub.on("order.*")
async def orders(event: Event) -> None:
    note(event)
    if event.payload.get("fails") and event.attempt == 1:
        raise Retry("once more", after=0)


@hub.on("cart.*", concurrency=2)
def carts(event: Event) -> object:
    note(event)
    if event.event_type == "cart.stuck":
        threading.Event().wait()
    return Dead("no such cart")
"""


@pytest.fixture
def worker_process(
    tmp_path: Path, settings: Settings, database_urls: DatabaseUrls
) -> "Generator[subprocess.Popen[str]]":
    """Run the program in its own folder, beside the hub."""
    home = tmp_path / "shop"
    home.mkdir()
    (home / "shop_events.py").write_text(PROGRAM)
    variables = {
        "PABAL_DATABASE_URL": database_urls.main,
        "PABAL_DATA_DIR": str(settings.data_dir),
        "PABAL_STOP_WITHIN": "1s",
    }
    with (home / "log").open("w") as log:
        process = subprocess.Popen(
            [PABAL, "work", "--app", "shop_events:hub"],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=home,
            env=environment(**variables),
        )
    yield process
    process.kill()
    process.wait()
    assert process.stdout
    process.stdout.close()


async def test_a_program_handles_events_of_sql_and_http_until_sigterm(
    hub: Hub, web: httpx2.AsyncClient, owner: Connection, worker_process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    assert worker_process.stdout
    greeting = await asyncio.to_thread(worker_process.stdout.readline)
    assert greeting.strip() == "Handling events of minu_build", (tmp_path / "shop" / "log").read_text()
    shop = await connect_service(hub, web, "shop")

    async with owner.transaction():  # together with a write of the service
        await owner.execute("create table public.orders (id integer)")
        sql = "select pabal.publish('minu_find', $1, $2::text::jsonb, target => 'minu_build')"
        by_function = await owner.fetchval(sql, "order.function", '{"fails": true}')
    await owner.execute(
        "insert into public.event_queue (event_type, source_service) values ('order.broadcast', 'minu_find')"
    )
    by_http = (await shop.publish("order.http", target_service="minu_build", payload={"n": 1}))["id"]
    dead = (await shop.publish("cart.paid", target_service="minu_build"))["id"]

    async def all_ended() -> bool:
        return await owner.fetchval("select count(*) from pabal.event_due") == 0 and not await held(owner)

    await wait_until(all_ended, within=PROCESS_TIMEOUT)
    seen = sorted(map(json.loads, (tmp_path / "shop" / "seen").read_text().splitlines()))
    assert seen == [
        ["cart.paid", {}, 1, "shop"],
        ["order.broadcast", {}, 1, "minu_find"],
        ["order.function", {"fails": True}, 1, "minu_find"],
        ["order.function", {"fails": True}, 2, "minu_find"],
        ["order.http", {"n": 1}, 1, "shop"],
    ]
    assert (await load_event(hub, by_function)).retry_count == 1
    assert [(await shop.get_event(row))["status"] for row in (by_http, dead)] == ["completed", "failed"]

    stuck = await owner.fetchval(sql, "cart.stuck", "{}")
    await wait_until(lambda: "cart.stuck" in (tmp_path / "shop" / "seen").read_text(), within=PROCESS_TIMEOUT)
    worker_process.send_signal(signal.SIGTERM)

    assert await asyncio.to_thread(worker_process.wait, PROCESS_TIMEOUT) == 0, (tmp_path / "shop" / "log").read_text()
    released = await load_event(hub, stuck)
    assert (released.status, released.retry_count, released.last_error) == ("pending", 0, "released")


async def held(owner: Connection) -> bool:
    return await owner.fetchval("select exists (select from public.event_queue where lease is not null)")


class TestInvalidPrograms:
    @pytest.fixture(autouse=True)
    def _in_program_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", [*sys.path])
        for name in ("no_program", "broken_program"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        (tmp_path / "no_program.py").write_text("from pabal.client import App\nempty = App('minu_build')\nother = 7")
        (tmp_path / "broken_program.py").write_text("import pabal\npabal.nonsense")

    @pytest.mark.parametrize(
        ("program", "message"),
        [
            ("no_program", "--app must be module:name"),
            (":hub", "--app must be module:name"),
            ("nowhere:hub", "no module named nowhere"),
            ("no_program:hub", "no_program has no hub"),
            ("no_program:other", "other is a int, not a pabal_client.App"),
            ("no_program:empty", "empty has no handlers"),
        ],
    )
    async def test_an_invalid_program_is_a_setup_error(self, program: str, message: str) -> None:
        with pytest.raises(SetupError, match=message):
            load_handlers(program)

    async def test_an_error_in_the_program_is_raised_unchanged(self) -> None:
        with pytest.raises(AttributeError, match="nonsense"):
            load_handlers("broken_program:hub")
