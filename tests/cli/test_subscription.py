"""`pabal subscription`."""

import asyncio
import re
import subprocess
from collections.abc import AsyncGenerator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook

from pabal.core.ids import new_id
from pabal.hub import DatabaseUrls
from support.clusters import open_connection
from support.pabal_process import pabal, pabal_json, run_hub
from support.receiver import Receiver, hang, respond_with, run_receiver

pytestmark = pytest.mark.anyio

SECRET = re.compile(r"whsec_[\w+/]{43}=")
Run = Callable[..., "subprocess.CompletedProcess[str]"]
Ask = Callable[..., Any]


@pytest.fixture
def variables(database_urls: DatabaseUrls) -> dict[str, str]:
    return {"PABAL_DATABASE_URL": database_urls.main, "PABAL_CALLBACK_ALLOW": "http://127.0.0.1", "COLUMNS": "200"}


@pytest.fixture
def run(folder: Path, variables: dict[str, str]) -> Run:
    return partial(pabal, "subscription", folder=folder, **variables)


@pytest.fixture
def ask(folder: Path, variables: dict[str, str]) -> Ask:
    return partial(pabal_json, "subscription", folder=folder, **variables)


@pytest.fixture
async def there() -> AsyncGenerator[Receiver]:
    async with run_receiver() as one:
        yield one


async def test_a_life(database_urls: DatabaseUrls, run: Run, ask: Ask, there: Receiver) -> None:
    result = run(
        "add",
        "order.*",
        "cart.filled",
        "--service",
        "minu_build",
        "--url",
        there.url,
        "--timeout",
        "7",
        "--retry-schedule",
        "5s,2m",
    ).stdout
    [secret] = SECRET.findall(result)
    [one] = ask("list")["items"]
    row = one["id"]

    assert row in result
    assert "shown only once" in result
    assert (one["service_name"], one["mode"], one["url"]) == ("minu_build", "push", there.url)
    assert (one["event_types"], one["timeout_seconds"]) == (["order.*", "cart.filled"], 7)
    assert ask("list", "--service", "minu_keep")["items"] == []
    assert ask("show", row) == one
    shown = run("show", row).stdout
    assert there.url in shown
    assert "active" in shown
    assert (one["retry_schedule"], one["on_blocked"]) == ([5, 120], "dead_letter")
    assert "5s, 2m" in shown
    assert "whsec_" not in shown + str(one)

    assert ask("pause", row)["paused_at"] is not None
    assert "paused since" in run("list").stdout
    assert "active" in run("resume", row).stdout

    rotated = ask("rotate-secret", row)
    assert SECRET.fullmatch(rotated["secret"])
    assert rotated["secret"] != secret
    assert "signs until" in run("show", row).stdout

    assert ask("remove", row) == {"removed": row}
    assert ask("list")["items"] == []
    async with open_connection(database_urls.main) as conn:
        entries = await conn.fetch("select actor, action from pabal.audit_log where subject = $1 order by id", row)
    assert {entry["actor"].partition(":")[0] for entry in entries} == {"cli"}
    assert [entry["action"] for entry in entries] == [
        f"subscription.{item}" for item in ("added", "paused", "resumed", "secret_rotated", "removed")
    ]


async def test_the_retries_of_a_push_are_changed(run: Run, ask: Ask, there: Receiver) -> None:
    added = ask("add", "order.*", "--service", "minu_build", "--url", there.url)["id"]

    changed = ask("set", added, "--retry-schedule", "5s,2m,1h", "--on-blocked", "hold")
    shown = run("show", added).stdout
    restored = ask("set", added, "--retry-schedule", "default")

    assert (changed["retry_schedule"], changed["on_blocked"]) == ([5, 120, 3600], "hold")
    assert "5s, 2m, 1h" in shown
    assert (restored["retry_schedule"], restored["on_blocked"]) == (None, "hold"), "it keeps what is not given"
    nothing = run("set", added, code=2).stderr
    assert nothing.startswith("pabal: Nothing to change: give --type or --url or ")
    assert "--retry-schedule must be" in run("set", added, "--retry-schedule", "soon", code=2).stderr
    assert "retry_schedule: " in run("set", added, "--retry-schedule", "2d", code=1).stderr


async def test_what_a_subscription_receives_and_where_is_changed(run: Run, ask: Ask, there: Receiver) -> None:
    added = ask("add", "order.*", "--service", "minu_build", "--url", there.url)["id"]

    types, url = ["--type", "order.paid", "--type", "order.refunded"], there.url + "/v2"
    changed = ask("set", added, *types, "--url", url, "--description", "Billing", "--timeout", "30")
    cleared = ask("set", added, "--description", "")

    assert (changed["event_types"], changed["url"]) == (["order.paid", "order.refunded"], url)
    assert (changed["description"], changed["timeout_seconds"]) == ("Billing", 30)
    assert (cleared["description"], cleared["timeout_seconds"]) == (None, 30)
    refused = run("set", added, "--url", "http://127.0.0.2/", code=1).stderr
    assert "url: does not begin with https://. To allow it, add its origin to PABAL_CALLBACK_ALLOW" in refused
    assert "event_types: are 1 to 50 types" in run("set", added, "--type", "Order", code=1).stderr


async def test_the_test_push_reports_the_response(run: Run, ask: Ask, there: Receiver) -> None:
    added = ask("add", "order.*", "--service", "minu_build", "--url", there.url)

    done = await asyncio.to_thread(run, "test", added["id"])
    there.responder = respond_with(500, b"oh no")
    failed = await asyncio.to_thread(run, "test", added["id"], code=1, PABAL_LOG_LEVEL="warning")
    read = await asyncio.to_thread(ask, "test", added["id"], code=1)

    assert done.stdout == "delivered\n"
    assert failed.stderr == "pabal: test event not delivered: HTTP 500: oh no\n"
    assert read == {"delivered": False, "error": "HTTP 500: oh no"}
    result = Webhook(added["secret"]).verify(there.requests[0].body, dict(there.requests[0].headers))
    assert (result["event_type"], result["target_service"]) == ("pabal.test", "minu_build")


async def test_a_stopping_hub_releases_a_push_that_hangs(
    folder: Path, database_urls: DatabaseUrls, variables: dict[str, str], ask: Ask, there: Receiver
) -> None:
    publish = "select pabal.publish('minu_find', 'order.paid', target => 'minu_build')"
    ask("add", "order.*", "--service", "minu_build", "--url", there.url)
    async with open_connection(database_urls.main) as conn:
        with run_hub(folder, PABAL_DATABASE_DIRECT_URL=database_urls.direct or "", **variables) as up:
            await conn.fetchval(publish)
            await there.wait_for_requests(1)
            there.responder = hang
            row = await conn.fetchval(publish)
            await there.wait_for_requests(2)
            took = await asyncio.to_thread(up.end)
        left = await conn.fetchrow("select status, retry_count, last_error from public.event_queue where id = $1", row)

    assert took < 5
    assert up.process.returncode == 0
    assert left is not None
    assert tuple(left) == ("pending", 0, "released")


@pytest.mark.parametrize(
    ("args", "code", "result"),
    [
        (["add", "*", "--service", "nobody"], 1, "No such service: nobody"),
        (["add", "Order", "--service", "minu_build"], 1, "event_types: are 1 to 50 types"),
        (
            ["add", "*", "--service", "minu_build", "--url", "https://10.0.0.1/"],
            1,
            "url: resolves to an address that is not public. To allow it, add its origin to PABAL_CALLBACK_ALLOW",
        ),
        (
            ["add", "*", "--service", "minu_build", "--url", "http://127.0.0.2:9000/hook"],
            1,
            "url: does not begin with https://. To allow it, add its origin to PABAL_CALLBACK_ALLOW, such as http://127",
        ),
        (["add", "*", "--service", "minu_build", "--timeout", "61"], 2, "--timeout"),
        (["add", "*", "--service", "minu_build", "--description", "a\x1b[2Jb"], 2, "--description must be one line"),
        (["add", "*"], 2, "--service"),
        (["show", "x"], 2, "ID"),
        (["pause", str(new_id())], 1, "No such subscription: "),
    ],
)
async def test_a_refusal_is_one_line(run: Run, args: list[str], code: int, result: str) -> None:
    refused = run(*args, code=code, PABAL_LOG_LEVEL="warning")

    [line] = refused.stderr.splitlines()
    assert result in line
    assert refused.stdout == ""
