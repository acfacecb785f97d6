"""`pabal account`."""

import re
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from pabal.core.errors import AccountDisabled, Unauthenticated
from pabal.core.ids import new_id
from pabal.hub import DatabaseUrls, Hub
from pabal.relay.auth import authenticate_relay_token
from relay.people import audit_actions_of, conversation_state_of, insert_message, new_session, pair_user, send_command
from support.clusters import Connection
from support.pabal_process import pabal, pabal_json

pytestmark = pytest.mark.anyio

TOKEN = re.compile(r"prt_[\w-]{43}")
Run = Callable[..., "subprocess.CompletedProcess[str]"]
Ask = Callable[..., Any]


@pytest.fixture
def run(folder: Path, database_urls: DatabaseUrls) -> Run:
    return partial(pabal, "account", folder=folder, PABAL_DATABASE_URL=database_urls.main)


@pytest.fixture
def ask(folder: Path, database_urls: DatabaseUrls) -> Ask:
    return partial(pabal_json, "account", folder=folder, PABAL_DATABASE_URL=database_urls.main)


async def come(hub: Hub, token: str) -> UUID:
    async with hub.autocommit() as tx:
        account = (await authenticate_relay_token(tx, token)).account_id
    assert account
    return account


async def test_a_life(hub: Hub, owner: Connection, run: Run, ask: Ask) -> None:
    assert run("list").stdout == "No accounts.\n"
    result = run("add", "우리 봇", "--rate-limit", "120").stdout
    [token] = TOKEN.findall(result)
    [one] = ask("list")["items"]
    row = one["id"]
    assert row in result
    assert "shown only once" in result
    assert (one["openclaw_user_id"], one["rate_limit_per_minute"], one["has_token"]) == ("우리 봇", 120, True)
    account = await come(hub, token)
    assert str(account) == row
    assert "우리 봇 may send 240 polls" in run("set", "우리 봇", "--rate-limit", "240").stdout
    assert ask("set", row, "--rate-limit", "180")["rate_limit_per_minute"] == 180
    assert ask("show", row)["rate_limit_per_minute"] == 180
    assert ask("set", row, "--name", "파발봇")["openclaw_user_id"] == "파발봇"
    assert f"{row} is named 우리 봇" in run("set", "파발봇", "--name", "우리 봇").stdout
    assert one["answer_mode"] == "auto"
    assert "우리 봇 answers in the mode held" in run("set", "우리 봇", "--answer-mode", "held").stdout
    assert ask("show", row)["answer_mode"] == "held"
    assert "answer mode    held" in run("show", row).stdout
    assert "sometimes" in run("set", row, "--answer-mode", "sometimes", code=2).stderr

    await pair_user(hub, "min", account)
    await insert_message(owner, account, "min")
    shown = ask("show", "우리 봇")
    assert (shown["id"], shown["paired"], shown["open_messages"]) == (row, 1, 1)
    assert "1 paired, 0 pending, 0 blocked" in run("show", row).stdout
    assert "prt_" not in run("list").stdout + str(one) + str(shown)

    assert "우리 봇 is disabled since" in run("disable", row).stdout
    with pytest.raises(AccountDisabled):
        await come(hub, token)
    assert ask("show", row)["open_messages"] == 0
    assert ask("enable", "우리 봇")["disabled_at"] is None

    rotated = ask("rotate-token", row)
    assert TOKEN.fullmatch(rotated["relay_token"])
    with pytest.raises(Unauthenticated):
        await come(hub, token)
    assert await come(hub, rotated["relay_token"]) == account

    assert ask("remove", row, "--yes") == {"removed": row}
    assert ask("list")["items"] == []
    assert await conversation_state_of(owner, "min") == ("UNPAIRED", None)
    done = [deed.removeprefix("account.") for deed in await audit_actions_of(owner, row)]
    assert done == [
        "created",
        "rate_limit_set",
        "rate_limit_set",
        "renamed",
        "renamed",
        "answer_mode_set",
        "pairing.code_made",
        "disabled",
        "enabled",
        "token_rotated",
        "deleted",
    ]


async def test_a_sessions_account_gets_a_relay_token_by_rotation(
    hub: Hub, owner: Connection, run: Run, ask: Ask
) -> None:
    session = await new_session(hub)
    await send_command(hub, "min", f"/pair {session.code}")
    [one] = ask("list")["items"]
    assert (one["openclaw_user_id"], one["has_token"]) == (f"session:{session.id}", False)
    assert "rotate-token" in run("show", one["id"]).stdout

    [token] = TOKEN.findall(run("rotate-token", one["id"], "--sessions").stdout)

    assert str(await come(hub, token)) == one["id"]
    with pytest.raises(Unauthenticated):
        await come(hub, session.token)


@pytest.mark.parametrize(
    ("args", "code", "result"),
    [
        (["add", "a\x1b[2Jb"], 1, "name: must be one line"),
        (["add", "session:x"], 1, "name: begins with session:"),
        (["add", "x", "--rate-limit", "0"], 2, "--rate-limit"),
        (["set", "x", "--rate-limit", "0"], 2, "--rate-limit"),
        (["set", "x"], 2, "--name or --rate-limit or --answer-mode"),
        (["set", "x", "--rate-limit", "5"], 1, "No such account"),
        (["show", "nobody"], 1, "No such account: nobody. See `pabal account list`"),
        (["disable", str(new_id())], 1, "`pabal account list`"),
        (["rotate-token", "nobody"], 1, "No such account: nobody"),
        (["remove", "nobody"], 2, "Confirm with --yes"),
        (["remove", "nobody", "--yes"], 1, "No such account: nobody"),
    ],
)
async def test_a_refusal_is_one_line(run: Run, args: list[str], code: int, result: str) -> None:
    refused = run(*args, code=code, PABAL_LOG_LEVEL="warning")

    [line] = refused.stderr.splitlines()
    assert result in line
    assert refused.stdout == ""


async def test_the_verbs_of_the_previous_version_still_work_and_are_hidden(run: Run, ask: Ask) -> None:
    created = ask("create", "mina")
    help_text = run("--help").stdout

    assert ask("delete", "mina", "--yes") == {"removed": created["id"]}
    assert "│ create" not in help_text
    assert "│ delete" not in help_text
