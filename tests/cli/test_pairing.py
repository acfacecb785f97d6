"""`pabal pairing add` and `pabal conversation list|block|unblock|unpair|approve|deny`."""

import re
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pabal.audit.pseudonym import conversation_pseudonym
from pabal.hub import DatabaseUrls, Hub
from relay.people import (
    add_account,
    audit_actions_of,
    conversation_state_of,
    create_code,
    insert_message,
    key_of_user,
    pair_user,
    send_command,
)
from support.clusters import Connection
from support.pabal_process import pabal, pabal_json

pytestmark = pytest.mark.anyio

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Ask = Callable[..., Any]


@pytest.fixture
def run(folder: Path, database_urls: DatabaseUrls) -> Run:
    return partial(pabal, folder=folder, PABAL_DATABASE_URL=database_urls.main)


@pytest.fixture
def ask(folder: Path, database_urls: DatabaseUrls) -> Ask:
    return partial(pabal_json, folder=folder, PABAL_DATABASE_URL=database_urls.main)


async def test_a_printed_code_connects_a_user(hub: Hub, owner: Connection, run: Run, ask: Ask) -> None:
    bot, other = await add_account(hub), await add_account(hub, "other")
    assert run("conversation", "list").stdout == "No conversations.\n"
    result = run("pairing", "add", "owner", "--expires", "30m").stdout
    typed = re.findall(r"^/pair [A-Z2-9]{4}-[A-Z2-9]{4}$", result, re.MULTILINE)

    await send_command(hub, "min", *typed)
    assert await conversation_state_of(owner, "min") == ("PAIRED", bot.account)
    made = ask("pairing", "add", str(other.account))
    await send_command(hub, "jun", f"/pair {made['code']}")

    assert [item["conversation_key"] for item in ask("conversation", "list")["items"]] == [
        key_of_user("jun"),
        key_of_user("min"),
    ]
    [one] = ask("conversation", "list", "--account", "owner")["items"]
    assert (one["conversation_key"], one["account_id"], one["state"]) == (
        key_of_user("min"),
        str(bot.account),
        "PAIRED",
    )
    assert ask("conversation", "show", key_of_user("min")) == one
    assert re.search(rf"{key_of_user('min')} +paired +{bot.account}", run("conversation", "list").stdout)


async def test_an_operator_blocks_unblocks_and_unpairs(hub: Hub, owner: Connection, run: Run, ask: Ask) -> None:
    bot = await add_account(hub)
    key = await pair_user(hub, "min", bot.account)
    message = await insert_message(owner, bot.account, "min")

    assert run("conversation", "block", key).stdout == f"{key} is blocked by the operator\n"
    assert ask("conversation", "unblock", key)["state"] == "PAIRED"
    assert run("conversation", "unpair", key).stdout == f"{key} is unpaired\n"

    assert await owner.fetchval("select reason from public.inbound_messages where id = $1", message) == "blocked"
    done = await audit_actions_of(owner, conversation_pseudonym(key))
    assert done == ["pairing.verified", "conversation.blocked", "conversation.unblocked", "pairing.unpaired"]
    actors = await owner.fetch("select distinct actor from pabal.audit_log where action ~ '^conv|unpaired'")
    assert [row["actor"].partition(":")[0] for row in actors] == ["cli"]


async def test_an_operator_approves_and_denies(hub: Hub, owner: Connection, ask: Ask) -> None:
    bot = await add_account(hub)
    patient = hub.settings.model_copy(update={"pairing_approval": True})
    for user in ("min", "jun"):
        await send_command(hub, user, f"/pair {await create_code(hub, bot.account)}", settings=patient)

    assert ask("conversation", "approve", key_of_user("min"))["state"] == "PAIRED"
    assert ask("conversation", "deny", key_of_user("jun"))["state"] == "UNPAIRED"
    assert await conversation_state_of(owner, "min") == ("PAIRED", bot.account)


async def test_a_code_is_printed_for_a_database_of_the_command_line(
    hub: Hub, folder: Path, database_urls: DatabaseUrls
) -> None:
    await add_account(hub)

    arguments = ("pairing", "add", "owner", "--database-url", database_urls.main)
    printed = pabal(*arguments, folder=folder, PABAL_DATABASE_DIRECT_URL=database_urls.main).stdout

    assert re.search(r"^/pair [A-Z2-9]{4}-[A-Z2-9]{4}$", printed, re.MULTILINE)


async def test_invalid_settings_are_refused_before_a_code_is_created(hub: Hub, owner: Connection, run: Run) -> None:
    await add_account(hub)

    refused = run("pairing", "add", "owner", code=2, PABAL_PORT="none")

    assert "PABAL_PORT" in refused.stderr
    assert await owner.fetchval("select count(*) from public.pairing_codes") == 0


@pytest.mark.parametrize(
    ("args", "code", "result"),
    [
        (["pairing", "add", "nobody"], 1, "No such account: nobody. See `pabal account list`"),
        (["pairing", "add", "nobody", "--expires", "31m"], 2, "--expires must be positive and at most 30m"),
        (["conversation", "list", "--account", "nobody"], 1, "No such account: nobody"),
        (["conversation", "show", "bot:nobody"], 1, "No such conversation"),
        (["conversation", "unpair", "bot:nobody"], 1, "No such conversation"),
        (["conversation", "approve", "bot:nobody"], 1, "No such conversation"),
    ],
)
async def test_a_refusal_is_one_line(run: Run, args: list[str], code: int, result: str) -> None:
    refused = run(*args, code=code, PABAL_LOG_LEVEL="warning")

    [line] = refused.stderr.splitlines()
    assert result in line
    assert refused.stdout == ""
