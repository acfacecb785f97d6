"""`pabal operator`."""

import asyncio
import os
import re
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pabal.core.actor import Actor
from pabal.core.errors import Unauthenticated
from pabal.hub import DatabaseUrls, Hub
from pabal.operators.operators import OperatorSession, Role, find_operator_credentials
from pabal.operators.sessions import authenticate_operator, create_operator_session, find_operator_session
from pabal.settings import Settings
from support.clusters import open_connection
from support.pabal_process import PABAL, PROCESS_TIMEOUT, environment, pabal, pabal_json

pytestmark = pytest.mark.anyio

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Ask = Callable[..., Any]
HORSE = "correct horse"


@pytest.fixture
def settings(folder: Path) -> Settings:
    return Settings(_env_file=None, data_dir=folder / "data")  # pyright: ignore[reportCallIssue]


@pytest.fixture
def run(folder: Path, database_urls: DatabaseUrls) -> Run:
    return partial(pabal, folder=folder, PABAL_DATABASE_URL=database_urls.main, PABAL_LOG_LEVEL="warning")


@pytest.fixture
def ask(folder: Path, database_urls: DatabaseUrls) -> Ask:
    return partial(pabal_json, folder=folder, PABAL_DATABASE_URL=database_urls.main)


async def enter(hub: Hub, name: str, secret: str) -> str:
    async with hub.transaction() as tx:
        known = await authenticate_operator(await find_operator_credentials(tx, name), secret)
        return await create_operator_session(tx, known, Actor(f"operator:{name}"))


async def here(hub: Hub, token: str) -> OperatorSession | None:
    async with hub.autocommit() as tx:
        return await find_operator_session(tx, token)


async def audit(database_urls: DatabaseUrls) -> list[tuple[str, str, str]]:
    async with open_connection(database_urls.main) as conn:
        rows = await conn.fetch(
            "select actor, action, subject from pabal.audit_log where actor like 'cli:%' order by id"
        )
    return [(row["actor"].partition(":")[0], row["action"], row["subject"]) for row in rows]


async def test_a_new_operator_signs_in_with_the_password_from_stdin(
    hub: Hub, database_urls: DatabaseUrls, run: Run
) -> None:
    variables = run("operator", "add", "mina", "--role", "admin", feed=f"{HORSE}\n")

    token = await enter(hub, "mina", HORSE)
    session = await here(hub, token)
    assert session is not None
    assert session.role == Role.ADMIN
    assert HORSE not in variables.stdout + variables.stderr
    assert "mina added as admin" in variables.stdout
    assert await audit(database_urls) == [("cli", "operator.added", "mina")]


async def test_a_generated_password_is_shown_once(hub: Hub, database_urls: DatabaseUrls, run: Run, ask: Ask) -> None:
    run("operator", "add", "boss", "--role", "admin", "--generate")
    added = ask("operator", "add", "mina", "--generate")
    changed = run("operator", "set-password", "mina", "--generate")
    [shown] = re.findall(r"^password  (\S{20})$", changed.stdout, re.MULTILINE)

    assert (added["name"], added["role"], len(added["password"])) == ("mina", "viewer", 20)
    assert added["password"] != shown
    assert await enter(hub, "mina", shown)
    with pytest.raises(Unauthenticated):
        await enter(hub, "mina", added["password"])
    later = run("operator", "list").stdout + run("operator", "list", "--json").stdout
    assert shown not in later
    assert [item["name"] for item in ask("operator", "list")["items"]] == ["boss", "mina"]


async def test_password_role_and_disable_apply_to_open_sessions(
    hub: Hub, database_urls: DatabaseUrls, run: Run
) -> None:
    run("operator", "add", "boss", "--role", "admin", "--generate")
    run("operator", "add", "mina", feed=HORSE)
    first = await enter(hub, "mina", HORSE)

    run("operator", "set-password", "MINA", feed="another horse\r\n")
    assert await here(hub, first) is None
    second = await enter(hub, "mina", "another horse")
    run("operator", "set-role", "mina", "admin")
    session = await here(hub, second)
    assert session is not None
    assert session.role == Role.ADMIN
    run("operator", "disable", "mina")
    assert await here(hub, second) is None
    with pytest.raises(Unauthenticated):
        await enter(hub, "mina", "another horse")
    assert "disabled since" in run("operator", "list").stdout
    run("operator", "enable", "mina")
    assert await enter(hub, "mina", "another horse")
    assert [action for _, action, subject in await audit(database_urls) if subject == "mina"] == [
        "operator.added",
        "operator.password_changed",
        "operator.role_changed",
        "operator.disabled",
        "operator.enabled",
    ]


async def test_the_last_admin_cannot_be_disabled_or_demoted(database_urls: DatabaseUrls, run: Run) -> None:
    run("operator", "add", "boss", "--role", "admin", "--generate")

    for args in (["disable", "boss"], ["set-role", "boss", "viewer"]):
        refused = run("operator", *args, code=1)
        assert "boss is the only enabled admin. Add or enable another one first" in refused.stderr
    assert [action for _, action, _ in await audit(database_urls)] == ["operator.added"]


@pytest.mark.parametrize(
    ("args", "feed", "code", "message"),
    [
        (["add", "mina"], "short\n", 1, "password: must have 8 to 1,000 characters"),
        (["add", "mina"], "", 1, "password: must have 8 to 1,000 characters"),
        (["add", "mina"], "x" * 1001, 1, "password: must have 8 to 1,000 characters"),
        (["add", "a b"], HORSE, 1, "name: must be 1 to 64 letters"),
        (["add", "mina", "--role", "root"], HORSE, 2, "role"),
        (["set-password", "nobody"], HORSE, 1, "No such operator: nobody. See `pabal operator list`"),
        (["disable", "nobody"], "", 1, "No such operator: nobody"),
    ],
)
async def test_a_refusal_is_one_line(
    database_urls: DatabaseUrls, run: Run, args: list[str], feed: str, code: int, message: str
) -> None:
    refused = run("operator", *args, feed=feed, code=code)

    assert message.lower() in refused.stderr.lower()
    assert refused.stdout == ""
    assert len(refused.stderr.strip().split("\n")) == 1
    assert await audit(database_urls) == []


async def test_a_terminal_asks_twice_without_echo(hub: Hub, folder: Path, database_urls: DatabaseUrls) -> None:
    async def typed(*lines: str) -> tuple[int, str]:
        return await asyncio.to_thread(at_a_terminal, folder, database_urls, lines)

    code, shown = await typed(HORSE, HORSE)
    assert code == 0, shown
    assert "Password:" in shown
    assert "Repeat password:" in shown
    assert HORSE not in shown
    assert await enter(hub, "mina", HORSE)

    code, shown = await typed("another horse", "another house")
    assert code == 1
    assert "password: the two entries differ" in shown


def at_a_terminal(folder: Path, database_urls: DatabaseUrls, lines: tuple[str, ...]) -> tuple[int, str]:
    """Run `pabal operator add mina` in a terminal, type the lines, and return its exit code and the screen."""
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [PABAL, "operator", "add", "mina", "--role", "admin"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=folder,
        env=environment(PABAL_DATA_DIR=str(folder / "data"), PABAL_DATABASE_URL=database_urls.main),
        start_new_session=True,
    )
    os.close(theirs)
    shown = b""
    for line in lines:
        while not shown.rstrip(b" ").endswith(b":"):
            shown += os.read(ours, 1024)
        os.write(ours, line.encode() + b"\n")
        shown += b"\n"
    try:
        while part := os.read(ours, 1024):
            shown += part
    except OSError:
        pass  # a terminal whose other end is closed
    os.close(ours)
    return process.wait(PROCESS_TIMEOUT), shown.decode()
