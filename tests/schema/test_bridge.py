"""A database of the development version is moved to the current migrations, or refused and left unchanged."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pabal.core.errors import MigrationError
from pabal.db.migrate import apply_migrations, load_migrations, read_migration_status, revert_migrations
from support.catalog import snapshot
from support.clusters import Cluster, Connection, open_connection

pytestmark = pytest.mark.anyio

BEFORE_SQUASH = Path(__file__).with_name("before_squash")
SUPABASE = Path(__file__).with_name("seeds") / "before.sql"
NEWEST = "20251208090000_repeat_notices.sql"

ROWS = """
insert into public.services (name) values ('shop');
delete from public.services where name = 'minu_keep';
insert into pabal.subscriptions (service_name, mode, event_types, program)
values ('shop', 'handler', '{order.*}', 'shop.py');
insert into public.event_queue (event_type, source_service, target_service, ordering_key)
select 'order.paid', 'hub', 'shop', 'order-1' from generate_series(1, 3);
insert into public.event_queue (event_type, source_service) values ('order.paid', 'hub');
insert into public.event_queue (event_type, source_service, target_service, status, last_error)
values ('order.lost', 'hub', 'shop', 'failed', 'refused');
insert into public.service_tokens (service_name, access_token, token_hash, expires_at)
values ('shop', 'v1.a', 'hash', pabal.now() + interval '1 hour');
insert into public.accounts (id, openclaw_user_id) values ('01933000-0000-7000-8000-00000000000a', 'mina');
insert into public.inbound_messages (account_id, conversation_key, kakao_payload, normalized, source_event_id, handed)
values ('01933000-0000-7000-8000-00000000000a', 'channel:user', '{}', '{}', 'one', 7);
insert into public.relay_news (kind, account_id) values ('disabled', '01933000-0000-7000-8000-00000000000a');
insert into pabal.pulse (minute, lane, done) values (date_trunc('minute', pabal.now()), 'events', 3);
insert into pabal.limits (key, tat) values ('webhook channel:channel', pabal.now());
insert into pabal.audit_log (actor, action) values ('shop', 'event.published');
insert into notification.templates (key, category, texts, checksum) values ('order.paid', 'payment', '{}', 'x');
insert into notification.rules (name, event_pattern, template_key, recipients, channels, is_active)
values ('paid', 'order.paid', 'order.paid', '["user"]', '{user_dm}', false);
insert into notification.requests (id, recipient_type, recipient_id, template_key, payload, state)
values (pabal.uuid7(), 'user_dm', '1', 'order.paid', '{}', 'pending');
"""
RENAMED = {
    "pabal.made": "pabal.created_objects",
    "pabal.event_lines": "pabal.event_order",
    "pabal.pulse": "pabal.throughput",
    "public.relay_news": "public.relay_control_events",
}
RENAMED_COLUMNS = {"handed": "delivery_seq", "is_sure": "is_checked"}
# To pabal.event_keys.
MOVED_COLUMNS = {"public.event_queue": {"content_hash"}}
# Tables that the hub rewrites: the versions themselves, and the last runs of chores.
REPLACED = {"pabal.schema_migrations", "pabal.chores"}


async def old_database(server: Cluster) -> str:
    return await server.prepared_database("before squash", lambda url: apply_migrations(url, folder=BEFORE_SQUASH))


async def columns_in_order(conn: Connection) -> list[tuple[str, str]]:
    rows = await conn.fetch(
        """
        select attrelid::regclass::text as relation, attname as name
        from pg_attribute join pg_class c on c.oid = attrelid join pg_namespace n on n.oid = relnamespace
        where relkind = 'r' and attnum > 0 and not attisdropped
          and nspname <> 'information_schema' and nspname !~ '^pg_'
        order by 1, attnum
        """
    )
    return [(row["relation"], row["name"]) for row in rows]


async def all_rows(conn: Connection) -> dict[str, list[dict[str, Any]]]:
    """Every row of every table, under the current names."""
    tables = await conn.fetch(
        "select format('%I.%I', schemaname, tablename) as name from pg_tables"
        " where schemaname <> 'information_schema' and schemaname !~ '^pg_'"
    )
    contents: dict[str, list[dict[str, Any]]] = {}
    for table in tables:
        name: str = table["name"]
        if name in REPLACED:
            continue
        rows = await conn.fetch(f"select to_jsonb(t) as row from {name} t")
        records: list[dict[str, Any]] = [row["row"] for row in rows]
        renamed = [
            {RENAMED_COLUMNS.get(column, column): value for column, value in record.items()} for record in records
        ]
        contents[RENAMED.get(name, name)] = renamed
    return contents


def comparable(rows: list[dict[str, Any]], columns: set[str]) -> list[str]:
    """The rows with these columns as text, in a fixed order."""
    return sorted(str(sorted((name, value) for name, value in row.items() if name in columns)) for row in rows)


@pytest.fixture(params=["empty", "supabase"])
def existing_objects(request: pytest.FixtureRequest) -> str:
    """What a database has before Pabal: nothing, or the objects of Supabase."""
    return SUPABASE.read_text("utf-8") if request.param == "supabase" else ""


async def test_a_bridged_database_has_the_catalog_of_a_new_one(server: Cluster, existing_objects: str) -> None:
    new_url, old_url = await server.fresh_database(), await server.fresh_database()
    async with open_connection(new_url) as new_conn, open_connection(old_url) as old_conn:
        for conn in (new_conn, old_conn):
            if existing_objects:
                await conn.execute(existing_objects)
        await apply_migrations(new_url)
        await apply_migrations(old_url, folder=BEFORE_SQUASH)
        assert (await read_migration_status(old_url)).needs_bridge

        applied = await apply_migrations(old_url)

        assert applied == [*load_migrations()]
        assert await snapshot(old_conn) == await snapshot(new_conn)
        assert await columns_in_order(old_conn) == await columns_in_order(new_conn)
        migrations = "select version, name, checksum from pabal.schema_migrations order by version"
        assert await old_conn.fetch(migrations) == await new_conn.fetch(migrations)
    assert await apply_migrations(old_url) == []
    await revert_migrations(old_url)


async def test_rows_are_kept(server: Cluster) -> None:
    url = await old_database(server)
    async with open_connection(url) as conn:
        await conn.set_type_codec("jsonb", schema="pg_catalog", encoder=str, decoder=json.loads)
        await conn.execute(ROWS)
        before = await all_rows(conn)

        await apply_migrations(url)

        after = await all_rows(conn)
        reasons = await conn.fetch("select disabled_reason from pabal.subscriptions where mode = 'rule'")
    assert before.keys() <= after.keys()
    assert [row["anchor"] for row in after.pop("pabal.subscription_patterns")] == ["^order."]
    assert {name for name in after.keys() - before.keys() if after[name]} == {"pabal.row_locks"}  # the others are empty
    assert len(before.pop("pabal.subscriptions")) == len(after.pop("pabal.subscriptions")) == 2
    assert [row["disabled_reason"] for row in reasons] == ["the rule is disabled"]
    columns = {
        name: {column for row in rows for column in row} - MOVED_COLUMNS.get(name, set())
        for name, rows in before.items()
    }
    assert {name: comparable(rows, columns[name]) for name, rows in before.items()} == {
        name: comparable(after[name], columns[name]) for name in before
    }
    assert len(after["pabal.event_order"]) == 3


async def test_a_bridged_database_works(server: Cluster) -> None:
    url = await old_database(server)
    async with open_connection(url) as conn:
        await conn.execute(ROWS)
        await apply_migrations(url)

        event = await conn.fetchval("select pabal.publish('hub', 'order.paid', target => 'shop')")
        await conn.execute(
            "update public.event_queue set status = 'completed' where ordering_key = 'order-1' and seq = 1"
        )

        due = await conn.fetch("select id, seq from pabal.event_due where service = 'shop' order by seq")
    assert event in [row["id"] for row in due]
    assert 2 in [row["seq"] for row in due]


@pytest.mark.parametrize(
    ("sql", "difference"),
    [
        (
            "delete from pabal.schema_migrations where version = '20251207110000'",
            "20251207110000_create_pulse.sql is missing",
        ),
        (
            "update pabal.schema_migrations set checksum = 'other' where version = '20251124100004'",
            "20251124100004_create_mcp_indexes.sql has another checksum",
        ),
        (
            "insert into pabal.schema_migrations (version, name, checksum) values ('20251209000000', 'extra', 'x')",
            "20251209000000_extra.sql is unknown",
        ),
    ],
)
async def test_any_other_database_is_refused_and_unchanged(server: Cluster, sql: str, difference: str) -> None:
    url = await old_database(server)
    async with open_connection(url) as conn:
        await conn.execute(sql)
        before = await snapshot(conn), await conn.fetch("select * from pabal.schema_migrations order by version")

        with pytest.raises(MigrationError, match=f"cannot be moved to this one: {difference}$"):
            await apply_migrations(url)

        assert not (await read_migration_status(url)).needs_bridge
        assert before == (
            await snapshot(conn),
            await conn.fetch("select * from pabal.schema_migrations order by version"),
        )


async def test_a_partly_migrated_database_is_refused(server: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "migrations"
    shutil.copytree(BEFORE_SQUASH, folder)
    (folder / NEWEST).unlink()
    url = await server.fresh_database()
    await apply_migrations(url, folder=folder)

    with pytest.raises(MigrationError, match=f"{NEWEST} is missing"):
        await apply_migrations(url)


async def test_a_failing_bridge_changes_nothing(server: Cluster) -> None:
    url = await old_database(server)
    async with open_connection(url) as conn:
        await conn.execute("drop policy pulse_service_role_all on pabal.pulse")
        before = await snapshot(conn)

        with pytest.raises(MigrationError, match=r"bridge/rename\.sql"):
            await apply_migrations(url)

        assert await snapshot(conn) == before


async def test_a_database_that_needs_the_bridge_is_not_reverted(server: Cluster) -> None:
    url = await old_database(server)

    with pytest.raises(MigrationError, match="run `pabal migrate up` first"):
        await revert_migrations(url)


async def test_the_bridge_does_not_pass_the_requested_migration(server: Cluster) -> None:
    url = await old_database(server)

    with pytest.raises(MigrationError, match="can only be moved to the newest migration"):
        await apply_migrations(url, to=load_migrations()[0].version)

    assert (await read_migration_status(url)).needs_bridge
