"""Events name services that exist, and publishing locks none of them."""

from collections.abc import AsyncGenerator
from typing import Literal

import asyncpg
import pytest

from pabal.events.repair.registry_check import check_service_names
from pabal.hub import DatabaseUrls, Hub
from support.clusters import Connection, open_connection

pytestmark = pytest.mark.anyio

INSERT = "insert into public.event_queue (event_type, source_service, target_service) values ('order.paid', $1, $2)"
REMOVALS = {
    "delete": "delete from public.services where name = 'minu_build'",
    "rename": "update public.services set name = 'minu_other' where name = 'minu_build'",
    "truncate": "truncate public.services cascade",
}
removals = pytest.mark.parametrize("removal", REMOVALS.values(), ids=REMOVALS)


@pytest.fixture
async def publisher(database_urls: DatabaseUrls) -> AsyncGenerator[Connection]:
    """A second connection of the owner."""
    assert database_urls.direct
    async with open_connection(database_urls.direct) as conn:
        yield conn


@pytest.mark.parametrize(("field", "services"), [("source", ("shop", "hub")), ("target", ("hub", "shop"))])
async def test_an_event_of_an_unknown_service_is_refused_as_by_a_foreign_key(
    owner: Connection, field: str, services: tuple[str, str]
) -> None:
    known = await owner.fetchval(f"{INSERT} returning id", "hub", "minu_build")

    with pytest.raises(asyncpg.ForeignKeyViolationError) as inserted:
        await owner.execute(INSERT, *services)
    with pytest.raises(asyncpg.ForeignKeyViolationError) as updated:
        await owner.execute(
            "update public.event_queue set source_service = $2, target_service = $3 where id = $1", known, *services
        )

    for error in (inserted.value, updated.value):
        assert (error.constraint_name, error.table_name) == (f"valid_{field}_service", "event_queue")
    assert await owner.fetchval("select count(*) from public.event_queue") == 1


async def test_one_unknown_service_refuses_the_whole_statement(owner: Connection) -> None:
    with pytest.raises(asyncpg.ForeignKeyViolationError, match="no such service: shop"):
        await owner.execute(
            "insert into public.event_queue (event_type, source_service, target_service) "
            "select 'order.paid', 'hub', case when n = 77 then 'shop' else 'minu_build' end "
            "from generate_series(1, 99) n"
        )
    assert await owner.fetchval("select count(*) from public.event_queue") == 0


async def test_a_service_registered_in_the_same_transaction_is_known(owner: Connection) -> None:
    async with owner.transaction():
        await owner.execute("insert into public.services (name) values ('shop')")
        await owner.execute(INSERT, "shop", "minu_build")

    assert await owner.fetchval("select source_service from public.event_queue") == "shop"


@removals
async def test_a_service_is_neither_deleted_nor_renamed(owner: Connection, removal: str) -> None:
    """Also one without events: a transaction that publishes its first one may be open."""
    with pytest.raises(asyncpg.ForeignKeyViolationError) as refused:
        await owner.execute(removal)

    assert refused.value.constraint_name == "services_are_kept"
    await owner.execute("update public.services set is_active = false, disabled_at = now() where name = 'minu_build'")


@removals
@pytest.mark.parametrize("isolation", ["read_committed", "repeatable_read"])
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_no_service_vanishes_from_under_an_open_publish(
    owner: Connection,
    publisher: Connection,
    isolation: Literal["read_committed", "repeatable_read"],
    moment: str,
    removal: str,
) -> None:
    async with publisher.transaction(isolation=isolation):
        await publisher.fetchval("select count(*) from public.services")  # the snapshot of a repeatable read
        if moment == "after":
            await publisher.execute(INSERT, "hub", "minu_build")
        await owner.execute("set lock_timeout = '100ms'")  # truncate waits for the reader
        with pytest.raises((asyncpg.ForeignKeyViolationError, asyncpg.LockNotAvailableError)):
            await owner.execute(removal)
        if moment == "before":
            await publisher.execute(INSERT, "hub", "minu_build")

    assert await owner.fetchval(
        "select count(*) from public.event_queue e join public.services s on s.name = e.target_service"
    ) == await owner.fetchval("select count(*) from public.event_queue")


async def test_publishing_locks_no_service(owner: Connection, publisher: Connection) -> None:
    async with publisher.transaction():
        await publisher.execute(INSERT, "hub", "minu_build")

        locked = await owner.fetch("select name from public.services order by name for update skip locked")

    assert {"hub", "minu_build"} <= {name for (name,) in locked}


async def test_the_chore_reports_services_that_a_superuser_removed(hub: Hub, owner: Connection) -> None:
    for target in ("minu_build", "minu_keep", None):
        await owner.execute(INSERT, "minu_find", target)
    async with hub.autocommit() as tx:
        assert await check_service_names(tx, 10) == 0
    await owner.execute(
        "set session_replication_role = replica; delete from public.services where name in ('minu_find', 'minu_keep')"
    )

    async with hub.autocommit() as tx:
        assert await check_service_names(tx, 10) == 2
