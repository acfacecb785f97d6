"""`pabal admin`: who may use the console."""

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
from support.clusters import connected
from support.pabal_process import PABAL, PATIENCE, environment, listing, pabal

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
    return partial(listing, folder=folder, PABAL_DATABASE_URL=database_urls.main)


async def enter(hub: Hub, name: str, secret: str) -> str:
    async with hub.transaction() as tx:
        known = await authenticate_operator(await find_operator_credentials(tx, name), secret)
        return await create_operator_session(tx, known, Actor(f"operator:{name}"))


async def here(hub: Hub, token: str) -> OperatorSession | None:
    async with hub.autocommit() as tx:
        return await find_operator_session(tx, token)


async def audit(database_urls: DatabaseUrls) -> list[tuple[str, str, str]]:
    async with connected(database_urls.main) as conn:
        rows = await conn.fetch(
            "select actor, action, subject from pabal.audit_log where actor like 'cli:%' order by id"
        )
    return [(row["actor"].partition(":")[0], row["action"], row["subject"]) for row in rows]


async def test_somebody_added_signs_in_with_the_password_that_was_read(
    hub: Hub, database_urls: DatabaseUrls, run: Run
) -> None:
    said = run("admin", "add", "mina", "--role", "admin", feed=f"{HORSE}\n")

    token = await enter(hub, "mina", HORSE)
    session = await here(hub, token)
    assert session is not None
    assert session.role == Role.ADMIN
    assert HORSE not in said.stdout + said.stderr
    assert "mina may sign in as admin" in said.stdout
    assert await audit(database_urls) == [("cli", "operator.added", "mina")]


async def test_a_password_that_was_made_up_is_shown_once(
    hub: Hub, database_urls: DatabaseUrls, run: Run, ask: Ask
) -> None:
    run("admin", "add", "boss", "--role", "admin", "--generate")
    added = ask("admin", "add", "mina", "--generate")
    changed = run("admin", "passwd", "mina", "--generate")
    [shown] = re.findall(r"^password  (\S{20})$", changed.stdout, re.MULTILINE)

    assert (added["name"], added["role"], len(added["password"])) == ("mina", "viewer", 20)
    assert added["password"] != shown
    assert await enter(hub, "mina", shown)
    with pytest.raises(Unauthenticated):
        await enter(hub, "mina", added["password"])
    later = run("admin", "list").stdout + run("admin", "list", "--json").stdout
    assert shown not in later
    assert [each["name"] for each in ask("admin", "list")] == ["boss", "mina"]


async def test_passwd_disable_and_role_take_hold_of_whoever_is_signed_in(
    hub: Hub, database_urls: DatabaseUrls, run: Run
) -> None:
    run("admin", "add", "boss", "--role", "admin", "--generate")
    run("admin", "add", "mina", feed=HORSE)
    first = await enter(hub, "mina", HORSE)

    run("admin", "passwd", "MINA", feed="another horse\r\n")
    assert await here(hub, first) is None
    second = await enter(hub, "mina", "another horse")
    run("admin", "role", "mina", "admin")
    session = await here(hub, second)
    assert session is not None
    assert session.role == Role.ADMIN
    run("admin", "disable", "mina")
    assert await here(hub, second) is None
    with pytest.raises(Unauthenticated):
        await enter(hub, "mina", "another horse")
    assert "disabled since" in run("admin", "list").stdout
    run("admin", "enable", "mina")
    assert await enter(hub, "mina", "another horse")
    assert [action for _, action, subject in await audit(database_urls) if subject == "mina"] == [
        "operator.added",
        "operator.password_changed",
        "operator.role_changed",
        "operator.disabled",
        "operator.enabled",
    ]


async def test_somebody_must_stay_who_can_mend_things(database_urls: DatabaseUrls, run: Run) -> None:
    run("admin", "add", "boss", "--role", "admin", "--generate")

    for words in (["disable", "boss"], ["role", "boss", "viewer"]):
        refused = run("admin", *words, code=1)
        assert "boss is the only enabled admin: add or enable another one first" in refused.stderr
    assert [action for _, action, _ in await audit(database_urls)] == ["operator.added"]


@pytest.mark.parametrize(
    ("words", "feed", "code", "says"),
    [
        (["add", "mina"], "short\n", 1, "password: must have 8 to 1,000 characters"),
        (["add", "mina"], "", 1, "password: must have 8 to 1,000 characters"),
        (["add", "mina"], "x" * 1001, 1, "password: must have 8 to 1,000 characters"),
        (["add", "a b"], HORSE, 1, "name: must be 1 to 64 letters"),
        (["add", "mina", "--role", "root"], HORSE, 2, "role"),
        (["passwd", "nobody"], HORSE, 1, "operator nobody does not exist: `pabal admin list`"),
        (["disable", "nobody"], "", 1, "operator nobody does not exist"),
    ],
)
async def test_what_is_wrong_is_said_in_a_line(
    database_urls: DatabaseUrls, run: Run, words: list[str], feed: str, code: int, says: str
) -> None:
    refused = run("admin", *words, feed=feed, code=code)

    assert says.lower() in refused.stderr.lower()
    assert refused.stdout == ""
    assert len(refused.stderr.strip().split("\n")) == 1
    assert await audit(database_urls) == []


async def test_at_a_terminal_it_is_asked_for_twice_and_not_shown(
    hub: Hub, folder: Path, database_urls: DatabaseUrls
) -> None:
    async def typed(*lines: str) -> tuple[int, str]:
        return await asyncio.to_thread(at_a_terminal, folder, database_urls, lines)

    code, shown = await typed(HORSE, HORSE)
    assert code == 0, shown
    assert "Password:" in shown
    assert "Once more:" in shown
    assert HORSE not in shown
    assert await enter(hub, "mina", HORSE)

    code, shown = await typed("another horse", "another house")
    assert code == 1
    assert "password: was not the same twice" in shown


def at_a_terminal(folder: Path, database_urls: DatabaseUrls, lines: tuple[str, ...]) -> tuple[int, str]:
    """Run `pabal admin add mina` at a terminal of its own, and type; what it exits with and what the terminal shows."""
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [PABAL, "admin", "add", "mina", "--role", "admin"],
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
    return process.wait(PATIENCE), shown.decode()
