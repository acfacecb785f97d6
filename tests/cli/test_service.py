"""`pabal service`."""

import asyncio
import re
import signal
import subprocess
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pabal.core.actor import Actor
from pabal.core.errors import InvalidClient
from pabal.hub import DatabaseUrls, Hub
from pabal.settings import Settings
from pabal.tokens.issue import OAuthClient, authenticate_client
from support.clusters import open_connection
from support.pabal_process import PROCESS_TIMEOUT, environment, pabal, pabal_json, start_pabal
from support.wait import wait_until

pytestmark = pytest.mark.anyio

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Ask = Callable[..., Any]
SECRET = re.compile(r"pbs_[\w-]{43}")
ELSEWHERE = Actor("nobody", "192.0.2.7")


@pytest.fixture
def settings(folder: Path) -> Settings:
    """The settings of the commands, so that the hub of the test uses the same keys."""
    return Settings(_env_file=None, data_dir=folder / "data")  # pyright: ignore[reportCallIssue]


@pytest.fixture
def run(folder: Path, database_urls: DatabaseUrls) -> Run:
    return partial(pabal, folder=folder, PABAL_DATABASE_URL=database_urls.main)


@pytest.fixture
def ask(folder: Path, database_urls: DatabaseUrls) -> Ask:
    return partial(pabal_json, folder=folder, PABAL_DATABASE_URL=database_urls.main)


async def enter(hub: Hub, name: str, secret: str) -> OAuthClient:
    async with hub.autocommit() as tx:
        return await authenticate_client(tx, name, secret, ELSEWHERE)


async def audit(database_urls: DatabaseUrls, subject: str) -> list[tuple[str, str]]:
    async with open_connection(database_urls.main) as conn:
        rows = await conn.fetch("select actor, action from pabal.audit_log where subject = $1 order by id", subject)
    return [(row["actor"].partition(":")[0], row["action"]) for row in rows]


async def test_a_new_service_can_authenticate(hub: Hub, database_urls: DatabaseUrls, ask: Ask) -> None:
    added = ask(
        "service", "add", "shop", "--permission", "read", "--permission", "events:publish", "--permission", "read"
    )

    assert added.keys() == {"name", "client_id", "client_secret", "permissions"}
    assert (added["name"], added["client_id"]) == ("shop", "shop")
    assert added["permissions"] == ["read", "events:publish"]
    assert SECRET.fullmatch(added["client_secret"])
    assert (await enter(hub, "shop", added["client_secret"])).allowed == ("read", "events:publish")
    assert await audit(database_urls, "shop") == [("cli", "service.added"), ("cli", "service.secret_rotated")]


async def test_a_secret_is_shown_once_and_nowhere_else(run: Run) -> None:
    loud = partial(run, PABAL_LOG_LEVEL="debug")

    added = loud("service", "add", "shop", "--permission", "read", "--description", "sells")
    rotated = loud("service", "rotate-secret", "shop")
    issued = loud("token", "issue", "shop")
    later = [loud("service", *args) for args in (["show", "shop"], ["show", "shop", "--json"], ["list", "--json"])]

    secrets = SECRET.findall(added.stdout) + SECRET.findall(rotated.stdout)
    assert len({*secrets}) == 2
    for shown in (added, rotated):
        assert shown.stdout.count("pbs_") == 1
        assert "shown only once" in shown.stdout
    assert issued.stderr  # the log is on: it reports the keys it created
    for printed in (added.stderr, rotated.stderr, issued.stderr, *(item.stdout + item.stderr for item in later)):
        assert "pbs_" not in printed
        assert not any(secret[4:] in printed for secret in secrets)


@pytest.mark.parametrize(
    ("args", "code", "result"),
    [
        (["add", "minu_find", "--permission", "read"], 1, "Service minu_find already exists"),
        (["add", "Shop", "--permission", "read"], 1, "name: must be 2 to 63 lower-case letters"),
        (["add", "shop", "--permission", "fly"], 1, "'fly' is not a permission; use one of read, write,"),
        (["add", "shop"], 2, "--permission requires an argument"),
        (["add", "shop", "--permission", "read", "--description", "a\x1b[2Jb"], 1, "description: must be one line"),
        (["show", "nobody"], 1, "No such service: nobody. See `pabal service list`"),
        (["disable", "nobody"], 1, "No such service: nobody. See `pabal service list`"),
        (["enable", "nobody"], 1, "No such service: nobody. See `pabal service list`"),
        (["rotate-secret", "nobody"], 1, "No such service: nobody. See `pabal service list`"),
        (["rotate-secret", "minu_find", "--overlap", "soon"], 2, "--overlap: must be a duration such as"),
        (["rotate-secret", "minu_find", "--expires", "0"], 2, "--expires must be positive"),
        (["disable", "hub"], 1, "The hub's own service cannot be disabled"),
    ],
)
async def test_a_refusal_is_one_line_with_advice(run: Run, args: list[str], code: int, result: str) -> None:
    refused = run("service", *args, code=code, PABAL_LOG_LEVEL="warning")

    [line] = refused.stderr.splitlines()
    assert result in line
    assert refused.stdout == ""


async def test_show_and_list_print_everything_but_the_secret(run: Run, ask: Ask) -> None:
    ask("service", "add", "shop", "--permission", "read", "--permission", "tokens:introspect", "--description", "sells")
    ask("token", "issue", "shop")

    shown = ask("service", "show", "shop")
    result = run("service", "show", "shop").stdout
    every = {item["name"]: item for item in ask("service", "list")["items"]}

    assert shown["permissions"] == ["read", "tokens:introspect"]
    assert shown["scope"] == "events:read notifications:read tokens:introspect"
    assert (shown["active"], shown["disabled_at"], shown["description"]) == (True, None, "sells")
    assert shown["families"] == 1
    [secret] = shown["secrets"]
    assert secret.keys() == {"id", "created_at", "expires_at"}
    assert secret["expires_at"] is None
    assert secret["id"] in result
    assert "does not expire" in result
    assert every["shop"].items() <= shown.items()
    assert {"hub", "minu_find", "minu_frame", "minu_build", "minu_keep", "shop"} == every.keys()
    assert "pabal service rotate-secret minu_find" in run("service", "show", "minu_find").stdout


async def test_a_disabled_service_cannot_authenticate_until_enabled(
    hub: Hub, database_urls: DatabaseUrls, run: Run, ask: Ask
) -> None:
    secret = ask("service", "add", "shop", "--permission", "read")["client_secret"]

    off = ask("service", "disable", "shop")
    again = ask("service", "disable", "shop")
    with pytest.raises(InvalidClient):
        await enter(hub, "shop", secret)
    refused = run("token", "issue", "shop", code=1, PABAL_LOG_LEVEL="warning")
    listed = run("service", "list").stdout
    on = run("service", "enable", "shop")

    assert (off["active"], off["disabled_at"] is None) == (False, False)
    assert again == off
    assert "disabled since" in listed
    assert refused.stderr == "pabal: shop is disabled. Enable it with `pabal service enable shop`\n"
    assert on.stdout.startswith("shop is active")
    assert (await enter(hub, "shop", secret)).service == "shop"
    assert (await audit(database_urls, "shop"))[2:] == [
        ("cli", "service.disabled"),
        ("nobody", "authentication.failed"),
        ("cli", "service.enabled"),
    ]


async def test_the_old_secret_works_during_the_overlap(
    hub: Hub, run: Run, ask: Ask, travel: Callable[[timedelta], Awaitable[None]]
) -> None:
    first = ask("service", "add", "shop", "--permission", "read")["client_secret"]
    rotated = ask("service", "rotate-secret", "shop", "--overlap", "2h")
    refused = run("service", "rotate-secret", "shop", code=1, PABAL_LOG_LEVEL="warning")
    second = rotated["client_secret"]

    assert rotated.keys() == {"name", "client_id", "client_secret", "secrets"}
    new, before = rotated["secrets"]
    assert new["expires_at"] is None
    overlap = datetime.fromisoformat(before["expires_at"]) - datetime.fromisoformat(new["created_at"])
    assert overlap == timedelta(hours=2)
    assert refused.stderr.endswith("or revoke both at once with --overlap 0\n")
    for secret in (first, second):
        await enter(hub, "shop", secret)

    await travel(timedelta(hours=2))

    await enter(hub, "shop", second)
    with pytest.raises(InvalidClient):
        await enter(hub, "shop", first)


async def test_without_an_overlap_only_the_new_secret_works_until_it_expires(
    hub: Hub, run: Run, ask: Ask, travel: Callable[[timedelta], Awaitable[None]]
) -> None:
    first = ask("service", "add", "shop", "--permission", "read")["client_secret"]
    result = run("service", "rotate-secret", "shop", "--overlap", "0", "--expires", "90d").stdout
    [second] = SECRET.findall(result)

    assert "It expires" in result
    assert "No other secret is valid." in result
    await enter(hub, "shop", second)
    with pytest.raises(InvalidClient):
        await enter(hub, "shop", first)

    await travel(timedelta(days=90))

    with pytest.raises(InvalidClient):
        await enter(hub, "shop", second)


async def test_ctrl_c_ends_a_waiting_command_and_changes_nothing(
    folder: Path, database_urls: DatabaseUrls, ask: Ask
) -> None:
    url = database_urls.direct or database_urls.main
    async with open_connection(url) as holder, open_connection(url) as watcher:

        async def waits() -> bool:
            return await watcher.fetchval(
                "select exists(select from pg_stat_activity"
                " where datname = current_database() and wait_event_type = 'Lock')"
            )

        async with holder.transaction():
            await holder.execute("select from public.services where name = 'minu_find' for update")
            with start_pabal(
                *("service", "disable", "minu_find"),
                folder=folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment(
                    PABAL_DATA_DIR=str(folder / "data"),
                    PABAL_DATABASE_URL=database_urls.main,
                    PABAL_LOG_LEVEL="warning",
                ),
            ) as command:
                try:
                    await wait_until(waits, PROCESS_TIMEOUT)
                finally:
                    command.send_signal(signal.SIGINT)
                printed = await asyncio.to_thread(command.communicate, timeout=PROCESS_TIMEOUT)

    assert command.returncode == 130
    assert printed == ("", "")
    assert ask("service", "show", "minu_find")["active"] is True
