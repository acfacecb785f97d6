"""`pabal upgrade-database`: the data of PostgreSQL 15 is loaded into the present version."""

import asyncio
import json
import shutil
import signal
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest

from support.clusters import open_connection, postgres_bin_dir
from support.pabal_process import (
    PROCESS_TIMEOUT,
    environment,
    fresh_folder,
    pabal,
    pabal_json,
    pabal_process,
    remaining_processes,
    run_hub,
    start_pabal,
)
from support.wait import wait_until

OLD_BIN = postgres_bin_dir("pg15")

pytestmark = pytest.mark.skipif(OLD_BIN is None, reason="PostgreSQL 15 is not installed: no upgrade is tested")


@pytest.fixture(scope="module")
def old_data() -> Generator[Path]:
    """The data directory of a hub that ran on PostgreSQL 15."""
    with fresh_folder() as folder:
        with run_hub(folder, PABAL_PG_BIN=str(OLD_BIN)) as hub:
            pabal("service", "add", "shop", "--permission", "write", folder=folder)
            pabal("event", "publish", "order.paid", "--source", "shop", folder=folder)
            direct_url = pabal_json("db", "url", folder=folder)["direct_url"]
            asyncio.run(execute_sql(direct_url, "create role shop_app login password 'secret' in role pabal_publisher"))
            hub.end()
        yield folder / "data"


@pytest.fixture
def old_hub(folder: Path, old_data: Path) -> Path:
    subprocess.run(["cp", "-a", old_data, folder / "data"], check=True)
    return folder


async def execute_sql(url: str, sql: str) -> None:
    async with open_connection(url) as conn:
        await conn.execute(sql)


async def count_events(url: str) -> int:
    async with open_connection(url) as conn:
        assert conn.get_server_version().major == 18
        return await conn.fetchval("select count(*) from public.event_queue where event_type = 'order.paid'")


def test_an_older_database_is_named_with_the_command_and_upgraded(old_hub: Path) -> None:
    data = old_hub / "data"
    refused = pabal_process("up", folder=old_hub, code=1)
    assert "is from PostgreSQL 15" in refused.stderr
    assert "`pabal upgrade-database`" in refused.stderr
    assert not (data / "postgres-18").exists()

    result = pabal_json("upgrade-database", folder=old_hub)

    assert (result["from"], result["to"]) == (15, 18)
    assert result["rows"] > 0
    assert remaining_processes(old_hub) == []
    assert [path.name for path in data.glob("*.new-*")] == []
    assert (data / "postgres-15" / "PG_VERSION").read_text() == "15\n"
    with run_hub(old_hub) as hub:
        assert hub.password is None
        url = pabal("db", "url", folder=old_hub).stdout.strip()
        assert asyncio.run(count_events(url)) == 1
        location = url.partition("@")[2]
        assert asyncio.run(role_memberships(f"postgresql://shop_app:secret@{location}")) == ["pabal_publisher"]
        assert pabal_json("audit", "verify", folder=old_hub)["broken"] == 0
        hub.end()
    again = pabal("upgrade-database", folder=old_hub, code=1)
    assert "nothing to upgrade" in again.stderr


async def role_memberships(url: str) -> list[str]:
    async with open_connection(url) as conn:
        rows = await conn.fetch(
            "select roleid::regrole::text from pg_auth_members where member = current_user::regrole"
        )
        return [row[0] for row in rows]


def test_the_old_directory_still_works_after_the_upgrade(old_hub: Path) -> None:
    pabal("upgrade-database", "--old-bin", str(OLD_BIN), folder=old_hub)
    shutil.rmtree(old_hub / "data" / "postgres-18")

    with run_hub(old_hub, PABAL_PG_BIN=str(OLD_BIN)):
        [event] = pabal_json("event", "list", "--type", "order.paid", folder=old_hub)["items"]

    assert event["source_service"] == "shop"


def test_an_upgrade_without_the_old_programs_changes_nothing(old_hub: Path) -> None:
    refused = pabal("upgrade-database", "--old-bin", str(old_hub), folder=old_hub, code=1)

    assert "the programs of PostgreSQL 15 are needed" in refused.stderr
    assert "--old-bin" in refused.stderr
    assert not (old_hub / "data" / "postgres-18").exists()


def test_pg_bin_may_name_the_old_programs(old_hub: Path) -> None:
    assert pabal_json("upgrade-database", folder=old_hub, PABAL_PG_BIN=str(OLD_BIN))["to"] == 18


def test_a_running_hub_is_not_upgraded(old_hub: Path) -> None:
    with run_hub(old_hub, PABAL_PG_BIN=str(OLD_BIN)) as hub:
        running = pabal("upgrade-database", folder=old_hub, code=1)
        with run_hub(old_hub, "serve"):
            hub.end(signal.SIGKILL)  # its server and the other process go on
            served = pabal("upgrade-database", folder=old_hub, code=1)

    assert "already running" in running.stderr
    assert "sessions of a hub use the database" in served.stderr
    assert not (old_hub / "data" / "postgres-18").exists()


def test_a_killed_upgrade_is_repeated(old_hub: Path) -> None:
    """The new directory has no name until it is complete, so a start never finds half of the data."""
    data = old_hub / "data"
    command = start_pabal(
        "upgrade-database", folder=old_hub, env=environment(PABAL_DATA_DIR=str(data)), stderr=subprocess.DEVNULL
    )
    new_server = "postgres-18.new-*/postgres-18/postmaster.pid"
    asyncio.run(wait_until(lambda: any(data.glob(new_server)), within=PROCESS_TIMEOUT))
    command.send_signal(signal.SIGKILL)
    command.wait(PROCESS_TIMEOUT)
    assert not (data / "postgres-18").exists()

    result = json.loads(pabal("upgrade-database", "--json", folder=old_hub).stdout)

    assert result["to"] == 18
    assert remaining_processes(old_hub) == []
    assert [path.name for path in data.glob("*.new-*")] == []
