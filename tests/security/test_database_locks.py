"""A database login that may only publish cannot stop the hub by holding locks."""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import asyncpg
import httpx2
import pytest

import pabal
from pabal.core.finding import FindingLevel
from pabal.core.ids import new_id
from pabal.db import embedded
from pabal.doctor.doctor import run_checks
from pabal.hub import DatabaseUrls, Hub
from pabal.maintenance import SEAL_AUDIT
from pabal.notifications.people.preferences import PreferencesUpdate, update_preferences
from pabal.queue.chores import Chore, ChoreRunner, overdue_after
from pabal.relay.delivery.takeover import activate_parked_streams
from pabal.settings import Settings
from pabal.tokens.sql_roles import add_sql_role
from support.clusters import Connection, open_connection
from support.databases import url_with_database
from support.oauth_client import TESTER, register_oauth_service

pytestmark = pytest.mark.anyio

SRC = Path(pabal.__file__).parent
TRAVEL = Callable[[timedelta], Awaitable[None]]
ALLOWED = {
    "db/migrate.py": "before the first migration there is no row to lock; the wait is bounded and names the holder",
    "db/migrations/20251201110000_create_notifications.sql": "replaced by 20260101100000_lock_rows.sql",
    "db/migrations/down/20260101100000_lock_rows.sql": "the former function",
}
TAKE_ADVISORY_LOCK = re.compile(r"\bpg_(?:try_)?advisory_(?:xact_)?lock")
OLD_NAMES = (
    "pabal chore seal audit",
    "storm user_dm 100",
    "toasts 100",
    "preferences 100",
    "relay stream token 00000000-0000-0000-0000-000000000001",
    "minu_find k",
)
"""Names that the hub once locked by advisory locks."""


@pytest.fixture
async def publisher(
    postgres: embedded.ServerAddress, database_urls: DatabaseUrls, owner: Connection, hub: Hub, web: httpx2.AsyncClient
) -> AsyncGenerator[Connection]:
    """A connection of a role that publishes as the service shop and may do nothing else."""
    await register_oauth_service(hub, web, "shop", "write")
    await owner.execute("create role locks_app login password 'horse' in role pabal_publisher")
    async with hub.transaction() as tx:
        await add_sql_role(tx, "shop", "locks_app", TESTER)
    _, _, address = postgres.hub_url.partition("@")
    _, _, database = database_urls.main.rpartition("/")
    try:
        async with open_connection(url_with_database(f"postgresql://locks_app:horse@{address}", database)) as conn:
            yield conn
    finally:
        await owner.execute("drop role locks_app")


async def seal_count(owner: Connection) -> int:
    return await owner.fetchval("select count(*) from pabal.audit_seals")


async def test_a_publisher_that_holds_advisory_locks_stops_nothing(
    hub: Hub, publisher: Connection, owner: Connection
) -> None:
    before = await seal_count(owner)
    async with publisher.transaction():
        for name in OLD_NAMES:
            await publisher.execute("select pg_advisory_xact_lock(hashtextextended($1, 0))", name)
        await publisher.execute(
            "select pabal.publish('shop', 'order.paid', target => 'minu_find', ordering_key => 'k')"
        )
        async with asyncio.timeout(30):
            assert SEAL_AUDIT in await hub.chores.run_due()
            async with hub.transaction() as tx:
                await update_preferences(tx, "100", PreferencesUpdate(dm_enabled=False), TESTER)
            async with hub.transaction() as tx:
                await activate_parked_streams(tx, [new_id()])

    assert await seal_count(owner) > before


@pytest.mark.parametrize(
    "statement",
    [
        "select from pabal.row_locks",
        "select from pabal.row_locks for update",
        "lock table pabal.row_locks in access share mode",
        "select pabal.lock_names('storm', '{x}')",
        "lock table pabal.chores in access share mode",
    ],
)
async def test_a_publisher_reaches_no_lock_row(publisher: Connection, statement: str) -> None:
    transaction = publisher.transaction()
    await transaction.start()
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await publisher.execute(statement)
    await transaction.rollback()


async def test_the_doctor_says_that_the_audit_log_is_not_sealed(
    hub: Hub, owner: Connection, travel: TRAVEL, settings: Settings, database_urls: DatabaseUrls
) -> None:
    async def finding() -> tuple[FindingLevel, str]:
        [found] = [found for found in await run_checks(settings, database_urls) if found.what == "chores"]
        return found.level, found.seen

    assert await finding() == (FindingLevel.GOOD, "none has run yet")
    names = await hub.chores.run_due()
    assert await finding() == (FindingLevel.GOOD, f"{len(names)} ran on time")

    await travel(overdue_after(timedelta(hours=1)) + timedelta(seconds=1))
    assert await finding() == (FindingLevel.WARNING, "none has run for 181m")

    async with owner.transaction():
        await owner.execute("select from pabal.row_locks where kind = 'chore seal audit' for update")
        assert SEAL_AUDIT not in await hub.chores.run_due()
    assert await finding() == (FindingLevel.BAD, "the audit log has not been sealed for 181m")

    await travel(timedelta(seconds=1))
    assert SEAL_AUDIT in await hub.chores.run_due()
    assert (await finding())[0] is FindingLevel.GOOD


async def test_the_doctor_says_that_an_open_transaction_delays_the_seals(
    hub: Hub, publisher: Connection, travel: TRAVEL, settings: Settings, database_urls: DatabaseUrls
) -> None:
    async def finding() -> tuple[FindingLevel, str]:
        [found] = [found for found in await run_checks(settings, database_urls) if found.what == "audit chain"]
        return found.level, found.seen

    await hub.chores.run_due()
    async with publisher.transaction():
        await publisher.execute("select pg_current_xact_id()")
        async with hub.transaction() as tx:
            await update_preferences(tx, "100", PreferencesUpdate(dm_enabled=False), TESTER)
        await travel(timedelta(minutes=5))
        await hub.chores.run_due()
        assert await finding() == (FindingLevel.BAD, "the last entries have not been sealed for 5m")
        assert (await hub.stats.read()).unsealed_for >= timedelta(minutes=5)

    await travel(timedelta(seconds=1))
    await hub.chores.run_due()
    assert (await finding())[0] is FindingLevel.GOOD


async def test_a_metric_shows_the_age_of_every_chore(hub: Hub, web: httpx2.AsyncClient, travel: TRAVEL) -> None:
    await hub.chores.run_due()
    await travel(timedelta(hours=1))
    await hub.stats.read()

    metrics = (await web.get("/metrics")).text

    ages = dict(re.findall(r'^pabal_chore_success_age_seconds\{chore="([^"]+)"\} ([\d.]+)', metrics, re.MULTILINE))
    assert 3600 <= float(ages[SEAL_AUDIT]) < 3700


async def test_a_chore_that_fails_or_cannot_start_becomes_overdue(hub: Hub, travel: TRAVEL) -> None:
    async def fail(_tx: object, _batch: int) -> int:
        raise ValueError("no")

    hour = timedelta(hours=1)
    chores = ChoreRunner(hub.db, [Chore("fails", hour, fail)])
    await chores.run_due()
    await travel(overdue_after(hour) + timedelta(seconds=1))
    await chores.run_due()

    async with hub.autocommit() as tx:
        [run] = await chores.list_runs(tx)
    assert run.started_ago is not None
    assert run.started_ago < hour
    assert run.is_overdue


def test_no_code_takes_an_advisory_lock() -> None:
    """Every login of the database can hold one for ever. Lock a row: `pabal.lock_names`."""
    files = {
        path.relative_to(SRC).as_posix()
        for path in SRC.rglob("*")
        if path.suffix in {".py", ".sql"} and TAKE_ADVISORY_LOCK.search(path.read_text("utf-8"))
    }

    assert files == ALLOWED.keys()


async def test_no_function_of_the_database_takes_an_advisory_lock(owner: Connection) -> None:
    functions = await owner.fetch(
        "select oid::regprocedure::text as name, prosrc from pg_proc where pronamespace = any("
        "array(select oid from pg_namespace where nspname in ('pabal', 'notification', 'public')))"
    )

    assert len(functions) > 50
    assert [row["name"] for row in functions if TAKE_ADVISORY_LOCK.search(row["prosrc"])] == []
