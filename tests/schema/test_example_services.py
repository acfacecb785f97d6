"""The specification's four services: disabled in a new hub, unchanged in a database that is in use."""

import pytest

from pabal.db.adopt.adopt import adopt_database
from pabal.db.migrate import apply_migrations, load_migrations
from support.adopted import SEEDS
from support.clusters import Cluster, Connection, open_connection

pytestmark = pytest.mark.anyio

BEFORE = "20260102050000"
STATES = "select name from public.services where name like 'minu_%' and is_active order by name"
ALL_FOUR = ["minu_build", "minu_find", "minu_frame", "minu_keep"]


async def active_services(conn: Connection) -> list[str]:
    return [name for (name,) in await conn.fetch(STATES)]


async def test_a_new_hub_has_them_disabled_and_takes_the_specifications_rows(server: Cluster) -> None:
    url = await server.fresh_database()
    await apply_migrations(url)
    async with open_connection(url) as conn:
        active = await active_services(conn)
        await conn.execute(
            "insert into public.event_queue (event_type, source_service, target_service) "
            "values ('service.sync', 'minu_find', 'minu_frame')"
        )
        published = await conn.fetchval("select pabal.publish('minu_build', 'data.updated', target => 'minu_keep')")
        stored = await conn.fetchval("select count(*) from public.event_queue where status = 'pending'")

    assert active == []
    assert published
    assert stored == 2


@pytest.mark.parametrize(
    "use",
    [
        "insert into pabal.operators (id, name, password_hash, role) values (gen_random_uuid(), 'mina', 'x', 'admin')",
        "insert into public.event_queue (event_type, source_service) values ('service.sync', 'minu_find')",
        "insert into pabal.audit_log (actor, action, subject) values ('cli:mina', 'service.disabled', 'shop')",
    ],
)
async def test_a_database_that_is_in_use_keeps_them(server: Cluster, use: str) -> None:
    url = await server.prepared_database(BEFORE, lambda url: apply_migrations(url, to=BEFORE))
    async with open_connection(url) as conn:
        await conn.execute("update public.services set is_active = false, disabled_at = now() where name = 'minu_keep'")
        await conn.execute(use)
        await apply_migrations(url)

        assert await active_services(conn) == ALL_FOUR[:3]


async def test_an_adopted_database_keeps_them(server: Cluster) -> None:
    url = await server.fresh_database()
    await apply_migrations(url, to=load_migrations()[0].version)
    async with open_connection(url) as conn:
        await conn.execute("set search_path = public")
        await conn.execute((SEEDS / "000.sql").read_text("utf-8"))
        await adopt_database(url, "cli:test")

        assert await active_services(conn) == ALL_FOUR
