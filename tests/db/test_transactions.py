from dataclasses import dataclass

import pytest

from pabal.core.errors import Unavailable
from pabal.db.channels import Channel, Wakeup
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
insert into public.service_secrets (service_name, secret_hash) values ('nobody', repeat('a', 64))
-- name: read
select name, description, permissions from public.services where name = :name
""")


@dataclass(frozen=True, slots=True)
class Service:
    name: str
    description: str
    permissions: list[str]


async def test_a_transaction_that_fails_leaves_nothing(hub: Hub) -> None:
    with pytest.raises(ZeroDivisionError):
        async with hub.transaction() as tx:
            await tx.run(INSERT, name="shop", description="")
            raise ZeroDivisionError

    async with hub.autocommit() as tx:
        assert await tx.value(COUNT, name="shop") == 0


async def test_rows_are_read_into_frozen_values_json_included(hub: Hub) -> None:
    async with hub.transaction() as tx:
        assert await tx.run(INSERT, name="shop", description="sells") == 1
        shop = await tx.one(Service, READ, name="shop")

    assert shop == Service("shop", "sells", ["read"])


async def test_what_the_database_refuses_is_said_in_our_words(hub: Hub) -> None:
    async with hub.autocommit() as tx:
        await tx.run(INSERT, name="shop", description="")
        with pytest.raises(UniqueViolation) as twice:
            await tx.run(INSERT, name="shop", description="")
        with pytest.raises(CheckViolation):
            await tx.run(BAD_NAME)
        with pytest.raises(ForeignKeyViolation):
            await tx.run(ORPHAN)
        with pytest.raises(CheckViolation):
            await tx.run(INSERT, name=12, description="")

    assert twice.value.constraint == "services_pkey"


async def test_a_bell_rings_after_the_commit_and_never_after_a_rollback(hub: Hub) -> None:
    rung: list[set[Wakeup]] = []
    hub.db.on_commit = rung.append

    with pytest.raises(ZeroDivisionError):
        async with hub.transaction() as tx:
            tx.notify(Channel.EVENTS)
            raise ZeroDivisionError
    assert rung == []

    async with hub.transaction() as tx:
        tx.notify(Channel.EVENTS)
        tx.notify(Channel.EVENTS)
        assert rung == []
    assert rung == [{Wakeup(Channel.EVENTS)}]


async def test_a_closed_database_is_unavailable_not_a_driver_error(hub: Hub) -> None:
    await hub.db.close()

    with pytest.raises(Unavailable):
        async with hub.autocommit():
            pass
