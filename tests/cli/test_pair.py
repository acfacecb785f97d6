"""`pabal pair`: an operator connects users, and sees and ends what is connected."""

import re
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pabal.audit.pseudonym import conversation_pseudonym
from pabal.hub import DatabaseUrls, Hub
from relay.people import a_code, a_message, an_owner, connection_of, deeds, key_of, pair, write
from support.clusters import Connection
from support.pabal_process import listing, pabal

pytestmark = pytest.mark.anyio

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Ask = Callable[..., Any]


@pytest.fixture
def run(folder: Path, database_urls: DatabaseUrls) -> Run:
    return partial(pabal, "pair", folder=folder, PABAL_DATABASE_URL=database_urls.main)


@pytest.fixture
def ask(folder: Path, database_urls: DatabaseUrls) -> Ask:
    return partial(listing, "pair", folder=folder, PABAL_DATABASE_URL=database_urls.main)


async def test_a_printed_code_connects_a_user(hub: Hub, owner: Connection, run: Run, ask: Ask) -> None:
    bot, other = await an_owner(hub), await an_owner(hub, "other")
    assert run("list").stdout == "No conversations.\n"
    told = run("code", "owner", "--expires", "30m").stdout
    typed = re.findall(r"^/pair [A-Z2-9]{4}-[A-Z2-9]{4}$", told, re.MULTILINE)

    await write(hub, "min", *typed)
    assert await connection_of(owner, "min") == ("PAIRED", bot.account)
    made = ask("code", str(other.account))
    await write(hub, "jun", f"/pair {made['code']}")

    assert [each["conversation_key"] for each in ask("list")] == [key_of("jun"), key_of("min")]
    [one] = ask("list", "--account", "owner")
    assert (one["conversation_key"], one["account_id"], one["state"]) == (key_of("min"), str(bot.account), "PAIRED")
    assert re.search(rf"{key_of('min')} +paired +{bot.account}", run("list").stdout)


async def test_an_operator_ends_and_undoes(hub: Hub, owner: Connection, run: Run, ask: Ask) -> None:
    bot = await an_owner(hub)
    key = await pair(hub, "min", bot.account)
    message = await a_message(owner, bot.account, "min")

    assert run("block", key).stdout == f"{key} is blocked by the operator\n"
    assert ask("unblock", key)["state"] == "PAIRED"
    assert run("unpair", key).stdout == f"{key} is unpaired\n"

    assert await owner.fetchval("select reason from public.inbound_messages where id = $1", message) == "blocked"
    done = await deeds(owner, conversation_pseudonym(key))
    assert done == ["pairing.verified", "conversation.blocked", "conversation.unblocked", "pairing.unpaired"]
    actors = await owner.fetch("select distinct actor from pabal.audit_log where action ~ '^conv|unpaired'")
    assert [row["actor"].partition(":")[0] for row in actors] == ["cli"]


async def test_an_operator_decides_for_an_owner(hub: Hub, owner: Connection, ask: Ask) -> None:
    bot = await an_owner(hub)
    patient = hub.settings.model_copy(update={"pairing_approval": True})
    for user in ("min", "jun"):
        await write(hub, user, f"/pair {await a_code(hub, bot.account)}", settings=patient)

    assert ask("approve", key_of("min"))["state"] == "PAIRED"
    assert ask("deny", key_of("jun"))["state"] == "UNPAIRED"
    assert await connection_of(owner, "min") == ("PAIRED", bot.account)


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["code", "nobody"], 1, "there is no account nobody: `pabal account list`"),
        (["code", "nobody", "--expires", "31m"], 1, "expires: is longer than nothing and 30m at most"),
        (["list", "--account", "nobody"], 1, "there is no account nobody"),
        (["unpair", "bot:nobody"], 1, "there is no such conversation"),
        (["approve", "bot:nobody"], 1, "there is no such conversation"),
    ],
)
async def test_a_refusal_is_one_line(run: Run, words: list[str], code: int, told: str) -> None:
    refused = run(*words, code=code, PABAL_LOG_LEVEL="warning")

    [line] = refused.stderr.splitlines()
    assert told in line
    assert refused.stdout == ""
