from dataclasses import dataclass

import pytest

from pabal.core.errors import Unavailable
from pabal.db.doorbell.channels import Channel, Wakeup
from pabal.db.errors import CheckViolation, ForeignKeyViolation, UniqueViolation
from pabal.db.queries import parse_queries
from pabal.hub import Hub

pytestmark = pytest.mark.anyio

INSERT, COUNT, BAD_NAME, ORPHAN, READ = parse_queries("""
-- name: insert
insert into public.services (name, description) values (:name, :description)
-- name: count
select count(*) from public.services where name = :name
-- name: bad_name
insert into public.services (name) values ('Not A Name')
-- name: orphan
insert into public.service_secrets (service_name, secret_hash) values ('nosuch', repeat('a', 64))
-- name: read
select name, description, permissions from public.services where name = :name
""")


@dataclass(frozen=True, slots=True)
class Service:
    name: str
    description: str
    permissions: list[str]


async def test_a_failed_transaction_is_rolled_back(hub: Hub) -> None:
    with pytest.raises(ZeroDivisionError):
        async with hub.transaction() as tx:
            await tx.run(INSERT, name="shop", description="")
            raise ZeroDivisionError

    async with hub.autocommit() as tx:
        assert await tx.value(COUNT, name="shop") == 0


async def test_rows_are_read_into_frozen_values_including_json(hub: Hub) -> None:
    async with hub.transaction() as tx:
        assert await tx.run(INSERT, name="shop", description="sells") == 1
        shop = await tx.one(Service, READ, name="shop")

    assert shop == Service("shop", "sells", ["read"])


async def test_driver_errors_are_translated(hub: Hub) -> None:
    async with hub.autocommit() as tx:
        await tx.run(INSERT, name="shop", description="")
        with pytest.raises(UniqueViolation) as error:
            await tx.run(INSERT, name="shop", description="")
        with pytest.raises(CheckViolation):
            await tx.run(BAD_NAME)
        with pytest.raises(ForeignKeyViolation):
            await tx.run(ORPHAN)
        with pytest.raises(CheckViolation):
            await tx.run(INSERT, name=12, description="")

    assert error.value.constraint == "services_pkey"


async def test_listeners_are_notified_after_the_commit_and_never_after_a_rollback(hub: Hub) -> None:
    notified: list[set[Wakeup]] = []
    hub.db.on_commit = notified.append

    with pytest.raises(ZeroDivisionError):
        async with hub.transaction() as tx:
            tx.notify(Channel.EVENTS)
            raise ZeroDivisionError
    assert notified == []

    async with hub.transaction() as tx:
        tx.notify(Channel.EVENTS)
        tx.notify(Channel.EVENTS)
        assert notified == []
    assert notified == [{Wakeup(Channel.EVENTS)}]


async def test_a_closed_database_raises_unavailable(hub: Hub) -> None:
    await hub.db.close()

    with pytest.raises(Unavailable):
        async with hub.autocommit():
            pass
