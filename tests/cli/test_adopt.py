"""`pabal migrate preflight` and `pabal adopt`: the commands of the guide make an existing database a hub."""

import asyncio
import re
import shlex
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path

import pytest

from pabal.db import embedded
from pabal.db.adopt.catalog import TABLE_GROUPS
from pabal.db.adopt.rules import load_group_rules
from pabal.events.repair.plain_claims import return_plain_claims
from pabal.events.repair.repair import repair_event_tables
from pabal.hub import DatabaseUrls, open_hub
from pabal.keys.rotation import rewrap_all_envelopes
from pabal.settings import Settings
from support.clusters import open_connection
from support.databases import url_with_database
from support.dump import dump_database
from support.pabal_process import pabal, pabal_json

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "tests" / "schema"
GUIDE = ROOT / "docs" / "adopting.md"
SEED_FILES = ("seeds/before", "seeds/000", "seeds/001", "seeds/002", "existing/rows")
DATABASE = "existing"


@pytest.fixture
async def existing(postgres: embedded.ServerAddress) -> AsyncGenerator[str]:
    """A database made by the specification's own statements, with rows in every table."""
    async with open_connection(postgres.owner_url) as server:
        await server.execute(f"create database {DATABASE}")
        url = url_with_database(postgres.owner_url, DATABASE)
        async with open_connection(url) as conn:
            for name in SEED_FILES:
                await conn.execute((SCHEMA / f"{name}.sql").read_text("utf-8"))
        yield url
        await server.execute(f"drop database {DATABASE} with (force)")


def guide_commands() -> list[list[str]]:
    blocks = re.findall(r"^```\n(.*?)^```", GUIDE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return [shlex.split(line)[1:] for block in blocks for line in block.splitlines() if line.startswith("pabal ")]


@pytest.mark.anyio
async def test_the_commands_of_the_guide_adopt_the_database(existing: str, folder: Path) -> None:
    codes: list[int] = []
    for command in guide_commands():
        code = 1 if not codes else 0  # the first check finds the tables
        await asyncio.to_thread(pabal, *command, folder=folder, code=code, PABAL_DATABASE_URL=existing)
        codes.append(code)

    status = await asyncio.to_thread(pabal_json, "migrate", "status", folder=folder, PABAL_DATABASE_URL=existing)
    assert len(codes) == 5
    assert {item["state"] for item in status["items"]} == {"applied"}


@pytest.mark.anyio
async def test_a_dry_run_prints_differences_rows_and_sql(existing: str, folder: Path) -> None:
    urls = DatabaseUrls(existing, existing)
    before = await dump_database(urls)

    result = await asyncio.to_thread(pabal, "adopt", "--dry-run", folder=folder, PABAL_DATABASE_URL=existing)
    document = await asyncio.to_thread(pabal_json, "adopt", "--dry-run", folder=folder, PABAL_DATABASE_URL=existing)

    assert "widen    table public.event_queue" in result.stdout
    assert re.search(r"^events +repeated letters +2 ", result.stdout, re.MULTILINE)
    assert "alter table public.event_queue set schema pabal_adopt;" in result.stdout
    assert document["adopted"] is False
    assert document["rows"]["public.event_queue"] == 10
    assert "create schema pabal_adopt;" in document["sql"]
    assert without_keys(await dump_database(urls)) == without_keys(before)


@pytest.mark.anyio
async def test_a_conflict_leaves_the_dump_as_it_was(existing: str, folder: Path) -> None:
    urls = DatabaseUrls(existing, existing)
    async with open_connection(existing) as conn:
        await conn.execute("alter table public.accounts add column plan text")
    before = await dump_database(urls)

    dry = await asyncio.to_thread(pabal, "adopt", "--dry-run", folder=folder, code=1, PABAL_DATABASE_URL=existing)
    refused = await asyncio.to_thread(pabal, "adopt", "--yes", folder=folder, code=1, PABAL_DATABASE_URL=existing)

    assert "Nothing can be adopted until 1 conflict is solved." in dry.stderr
    assert "nothing was changed: column public.accounts.plan is not in the specification" in refused.stderr
    assert without_keys(await dump_database(urls)) == without_keys(before)


def without_keys(dump: bytes) -> bytes:
    """Newer versions of pg_dump write a random key into each dump."""
    return re.sub(rb"^\\(un)?restrict .*\n", b"", dump, flags=re.MULTILINE)


def test_the_adoption_is_confirmed(folder: Path) -> None:
    refused = pabal("adopt", folder=folder, code=2)

    assert "See what changes with --dry-run, then confirm with --yes" in refused.stderr


@pytest.mark.anyio
async def test_an_adopted_hub_starts_with_new_keys_and_nothing_to_repair(
    existing: str, folder: Path, settings: Settings
) -> None:
    await asyncio.to_thread(pabal, "adopt", "--yes", folder=folder, PABAL_DATABASE_URL=existing)

    async with open_hub(settings, DatabaseUrls(existing, existing)) as hub:
        async with hub.transaction() as tx:
            assert await repair_event_tables(tx, 0) == 0
            assert await return_plain_claims(tx, timedelta(minutes=5), 10) == 2
        report = await rewrap_all_envelopes(hub.transaction, hub.key_ring, lambda _: None)
    assert (report.unreadable, report.rewrapped) == (0, 0)


@pytest.mark.parametrize("group", TABLE_GROUPS)
def test_the_guide_has_every_rule(group: str) -> None:
    text = " ".join(GUIDE.read_text("utf-8").split())

    for rule in load_group_rules(group).rules:
        line = rule.text if rule.is_conflict else f"| {group} | {rule.name} | {rule.text} |"
        assert line in text, rule.name
