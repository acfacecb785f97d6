"""A database with the specification's own tables and rows in each of them becomes a hub, or stays as it is."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pabal.core.errors import MigrationError, Unavailable
from pabal.db.adopt.adopt import adopt_database, read_adoption_plan
from pabal.db.adopt.catalog import load_specification, read_shapes, specified_tables
from pabal.db.migrate import apply_migrations, load_migrations, read_migration_status, revert_migrations
from support.catalog import snapshot
from support.clusters import Cluster, Connection, open_connection
from support.wait import COUNT_LOCK_WAITS, wait_for_lock_of, wait_until

pytestmark = pytest.mark.anyio

SEEDS = Path(__file__).with_name("seeds")
OWNED_ELSEWHERE = (
    "create schema guild; create schema identity; create schema notification;"
    "create table guild.guilds (id uuid primary key); create table identity.users (id uuid primary key)"
)
"""What the specification's statements for notifications assume."""
ACTOR = "cli:test"
KILL_ADOPTION = """
select pg_terminate_backend(pid) from pg_locks
where locktype = 'advisory' and granted and database = (select oid from pg_database where datname = current_database())
"""
INSERT_LATE_EVENT = """
insert into public.event_queue (event_type, source_service, target_service) values ('late', 'hub', 'minu_keep')
"""


async def all_rows(conn: Connection, tables: tuple[str, ...]) -> dict[str, list[str]]:
    return {
        table: [row[0] for row in await conn.fetch(f"select t::text from {table} t order by 1")] for table in tables
    }


async def row_of(conn: Connection, table: str, key: str, column: str = "id") -> dict[str, Any]:
    row = await conn.fetchrow(f"select * from {table} where {column}::text like '%' || $1", key)
    assert row is not None
    return dict(row)


async def test_the_shapes_of_the_file_are_those_of_the_specification(existing: str) -> None:
    async with open_connection(existing) as conn:
        shapes = await read_shapes(conn, specified_tables())

    assert {name: (shape.columns, {*shape.parts}) for name, shape in shapes.items()} == {
        name: (shape.columns, {*shape.parts}) for name, shape in load_specification().items()
    }


async def test_an_adopted_database_has_the_catalog_of_a_new_hub(server: Cluster, existing: str) -> None:
    new_url = await server.fresh_database()
    async with open_connection(new_url) as new, open_connection(existing) as adopted:
        await new.execute((SEEDS / "before.sql").read_text("utf-8"))
        await new.execute(OWNED_ELSEWHERE)
        await apply_migrations(new_url)

        await adopt_database(existing, ACTOR)

        assert await snapshot(adopted) == await snapshot(new)
        migrations = "select version, name, checksum from pabal.schema_migrations order by version"
        assert await adopted.fetch(migrations) == await new.fetch(migrations)
        created = "select kind, name from pabal.created_objects order by 1, 2"
        assert await adopted.fetch(created) == await new.fetch(created)
    assert await apply_migrations(existing) == []
    with pytest.raises(MigrationError, match="is a hub's already"):
        await adopt_database(existing, ACTOR)
    await revert_migrations(existing)


async def test_every_row_is_kept(existing: str) -> None:
    async with open_connection(existing) as conn:
        ids = {
            table: {row[0] for row in await conn.fetch(f"select ({next(iter(shape.columns))})::text from {table}")}
            for table, shape in load_specification().items()
        }
        assert all(ids.values())

        await adopt_database(existing, ACTOR)

        for table, shape in load_specification().items():
            key = next(iter(shape.columns))
            kept = {row[0] for row in await conn.fetch(f"select ({key})::text from {table}")}
            assert ids[table] <= kept, table


async def test_tokens_of_another_issuer_become_revoked_history(existing: str) -> None:
    await adopt_database(existing, ACTOR)

    async with open_connection(existing) as conn:
        older, newer, leaked = [await row_of(conn, "public.service_tokens", key) for key in ("0001", "0002", "0003")]
        refresh = await row_of(conn, "public.refresh_tokens", "0012")
        live = await conn.fetchval("select count(*) from public.token_families where revoked_at is null")
    assert [token["is_revoked"] for token in (older, newer, leaked)] == [True, True, True]
    assert (older["token_hash"], newer["token_hash"]) == (f"hash-1:{older['id']}", "hash-1")
    assert (older["permissions"], newer["permissions"], leaked["permissions"]) == ('["read"]', '["read"]', "[]")
    assert older["access_token"] == "adopted:jwt-1"
    assert leaked["revoked_reason"] == "leaked"
    assert refresh["expires_at"] > refresh["created_at"]
    assert refresh["revoked_at"] is not None
    assert live == 0


async def test_events_are_due_claimed_or_ended_as_before(existing: str) -> None:
    await adopt_database(existing, ACTOR)

    async with open_connection(existing) as conn:
        due = await conn.fetch(
            "select e.payload from pabal.event_due d join public.event_queue e using (id)"
            " where e.parent_id is null order by e.seq"
        )
        assert [row["payload"] for row in due] == ['{"n": 2}', '{"n": 1}']
        claims = await conn.fetch("select id::text from pabal.plain_claims order by 1")
        assert [row[0][-3:] for row in claims] == ["103", "104"]
        started = await row_of(conn, "public.event_queue", "0104")
        assert started["processing_started_at"] == started["updated_at"]
        cancelled = await row_of(conn, "public.event_queue", "0106")
        assert cancelled["processed_at"] == cancelled["updated_at"]
        deliveries = await conn.fetch(
            "select target_service as name, payload from public.event_queue where parent_id is not null order by 1"
        )
    assert [row["name"] for row in deliveries] == ["minu_find", "minu_frame", "minu_keep"]
    assert {row["payload"] for row in deliveries} == {'{"n": 7}'}


async def test_one_failure_has_one_open_dead_letter(existing: str) -> None:
    await adopt_database(existing, ACTOR)

    async with open_connection(existing) as conn:
        letters = await conn.fetch(
            "select error_message as error, resolved_at is null as is_open, death from public.dead_letter_queue"
            " where event_id::text like '%0109' order by death"
        )
        missing = await conn.fetch(
            "select error_message as error from public.dead_letter_queue where event_id::text like '%0110'"
        )
        notes = await conn.fetchval("select resolution_notes from public.dead_letter_queue where id::text like '%0202'")
    assert [(row["error"], row["is_open"], row["death"]) for row in letters] == [
        ("no route", True, 1),
        ("no route", False, 2),
        ("no route", False, 3),
        ("timed out", True, 4),
    ]
    assert [row["error"] for row in missing] == ["refused"]
    assert notes == "done by hand"


async def test_relay_rows_keep_their_state(existing: str) -> None:
    await adopt_database(existing, ACTOR)

    async with open_connection(existing) as conn:
        hashes = await conn.fetch("select openclaw_user_id, relay_token_hash from public.accounts")
        states = await conn.fetch("select plusfriend_user_key, state from public.conversation_mappings")
        messages = await conn.fetch("select right(id::text, 1), status, reason from public.inbound_messages order by 1")
        delivered = await row_of(conn, "public.inbound_messages", "0412")
        code = await row_of(conn, "public.pairing_codes", "2346", "code")
    assert {name: hash_[:5] for name, hash_ in hashes} == {
        "mina": "aaaaa",
        "bora": "none:",
        "dana": "none:",
        "jun": "none:",
    }
    assert dict(map(tuple, states)) == {
        "one": "PAIRED",
        "two": "PAIRED",
        "three": "UNPAIRED",
        "four": "PENDING",
        "five": "BLOCKED",
        "six": "UNPAIRED",
        "seven": "UNPAIRED",
    }
    assert [tuple(row) for row in messages] == [
        ("1", "QUEUED", None),
        ("2", "DELIVERED", None),
        ("3", "ACKED", "acked"),
        ("4", "EXPIRED", "queue_life"),
        ("5", "QUEUED", None),
    ]
    assert delivered["lease"] is not None
    assert delivered["source_event_id"] == f"adopted:{delivered['id']}"
    assert code["used_at"] == code["created_at"]


async def test_notifications_end_with_a_reason(existing: str) -> None:
    await adopt_database(existing, ACTOR)

    async with open_connection(existing) as conn:
        requests = await conn.fetch(
            "select right(id::text, 1), state, reason, priority, ended_at is not null, attempt_count"
            " from notification.requests order by 1"
        )
        retired = await conn.fetchval("select bool_and(retired_at is not null) from notification.templates")
        preferences = await conn.fetchrow("select dm_enabled, payment_notifications from notification.preferences")
    assert [tuple(row) for row in requests] == [
        ("1", "pending", None, 5, False, 0),
        ("2", "sent", None, 5, True, 1),
        ("3", "sent", None, 5, True, 3),
        ("4", "failed", "exhausted", 5, True, 3),
        ("5", "suppressed", "category_off", 5, True, 0),
        ("6", "pending", None, 1, False, 0),
    ]
    assert retired
    assert tuple(preferences or ()) == (False, True)


async def test_the_audit_log_tells_what_was_adopted(existing: str) -> None:
    plan = await adopt_database(existing, ACTOR)

    async with open_connection(existing) as conn:
        entry = await conn.fetchrow(
            "select actor, details::text from pabal.audit_log where action = 'database.adopted'"
        )
    assert entry is not None
    assert entry["actor"] == ACTOR
    assert '"public.event_queue": 10' in entry["details"]
    assert plan.changed_rows()["events: repeated letters"] == 2


async def test_a_dry_run_counts_every_rule_and_changes_nothing(existing: str) -> None:
    async with open_connection(existing) as conn:
        before = await snapshot(conn), await all_rows(conn, specified_tables())

        plan = await read_adoption_plan(existing)

        assert (await snapshot(conn), await all_rows(conn, specified_tables())) == before
    assert plan.conflicts == []
    assert {name for name, rows in plan.changed_rows().items() if rows} == {
        f"{count.rule.group}: {count.rule.name}" for count in plan.counts if "unknown services" not in count.rule.name
    }
    assert plan.changed_rows()["tokens: other issuer"] == 7
    assert any("insert into public.event_queue" in statement for statement in plan.copy_statements)


CONFLICTS = [
    ("alter table public.event_queue add column shard integer", "column public.event_queue.shard is not in"),
    ("alter table public.pairing_codes alter metadata type text", "column public.pairing_codes.metadata is text"),
    ("alter table public.accounts drop column openclaw_user_id", "column public.accounts.openclaw_user_id is missing"),
    ("create view public.mine as select id from public.event_queue", "view mine depends on public.event_queue"),
    (
        "create table public.mine (id uuid references public.accounts (id))",
        "constraint mine_id_fkey on table mine depends on public.accounts",
    ),
    (
        (
            "create trigger mine before insert on public.accounts for each row"
            " execute function public.update_updated_at_column()"
        ),
        "trigger mine of public.accounts is not in the specification",
    ),
    (
        "alter table public.accounts add constraint mine check (openclaw_user_id <> 'x')",
        "constraint mine of public.accounts is not in the specification",
    ),
    ("create publication mine for table public.event_queue", "publication mine depends on public.event_queue"),
    ("drop table public.pairing_codes", "table public.pairing_codes is missing beside public.accounts"),
    ("alter table public.profiles drop column role cascade", "table public.profiles has no column role"),
    ("create table public.services (id int)", "table public.services exists and is not Pabal's"),
    ("insert into public.event_queue (event_type, source_service) values ('Order Paid', 'hub')", "'Order Paid'"),
    ("update public.event_queue set payload = '[]'", "The payload of an event is a JSON object"),
    ("update public.inbound_messages set status = 'LOST'", "'LOST'"),
    ("update notification.requests set template_key = 'Payment!'", "'Payment!'"),
    (
        (
            "alter table public.pairing_codes alter account_id drop not null;"
            "update public.pairing_codes set account_id = null"
        ),
        "column public.pairing_codes.account_id is null in 2 rows",
    ),
]


@pytest.mark.parametrize(("sql", "conflict"), CONFLICTS)
async def test_one_conflict_stops_everything(existing: str, sql: str, conflict: str) -> None:
    async with open_connection(existing) as conn:
        await conn.execute(sql)
        tables = tuple(table for table in specified_tables() if table != "public.pairing_codes")
        before = await snapshot(conn), await all_rows(conn, tables)

        plan = await read_adoption_plan(existing)
        with pytest.raises(MigrationError, match="nothing was changed") as error:
            await adopt_database(existing, ACTOR)

        assert conflict in str(error.value)
        assert [difference for difference in plan.conflicts if conflict in f"{difference.object} {difference.text}"]
        assert (await snapshot(conn), await all_rows(conn, tables)) == before


async def test_tables_that_differ_harmlessly_are_adopted(existing: str) -> None:
    async with open_connection(existing) as conn:
        await conn.execute(
            "alter table public.event_queue alter column event_type type varchar(200), drop column error_history;"
            "alter table public.event_queue drop constraint valid_source_service;"
            "create index mine on public.event_queue (priority);"
            "update public.event_queue set source_service = 'shop' where id::text like '%0101'"
        )
        plan = await read_adoption_plan(existing)
        assert plan.conflicts == []

        await adopt_database(existing, ACTOR)

        event = await row_of(conn, "public.event_queue", "0101")
        services = {
            row[0] for row in await conn.fetch("select name from public.services where description = 'Adopted'")
        }
    texts = {f"{difference.kind} {difference.object}" for difference in plan.differences}
    assert {"widen column public.event_queue.event_type", "widen column public.event_queue.error_history"} <= texts
    assert "replace index mine of public.event_queue" in texts
    assert (event["source_service"], event["error_history"]) == ("shop", "[]")
    assert services == {"shop"}


async def test_a_row_that_a_check_refuses_is_not_printed(existing: str) -> None:
    """PostgreSQL's detail is the row, with its payload."""
    async with open_connection(existing) as conn:
        await conn.execute(
            "alter table public.event_queue drop constraint valid_priority;"
            """update public.event_queue set priority = 99, payload = '{"code": "private"}'"""
        )

        with pytest.raises(MigrationError, match=r"rows of public\.event_queue violate") as error:
            await adopt_database(existing, ACTOR)

    assert "valid_priority" in str(error.value)
    assert "private" not in str(error.value)


async def test_privileges_that_end_with_the_old_tables_are_named(existing: str) -> None:
    async with open_connection(existing) as conn:
        await conn.execute(
            "create role shop; grant select, insert on public.event_queue to shop;"
            "grant update (priority) on public.event_queue to shop; grant select on public.event_queue to service_role"
        )
        try:
            plan = await read_adoption_plan(existing)
            await adopt_database(existing, ACTOR)
            may_insert = await conn.fetchval("select has_table_privilege('shop', 'public.event_queue', 'insert')")
        finally:
            await conn.execute("drop owned by shop; drop role shop")

    assert not may_insert
    assert [
        (difference.kind, difference.object, difference.text)
        for difference in plan.differences
        if difference.object.startswith("privileges")
    ] == [
        (
            "replace",
            "privileges of shop on public.event_queue",
            "are dropped (insert, select, update); grant again what the role needs, with a policy for its rows",
        )
    ]


async def test_only_some_groups_can_be_adopted(server: Cluster) -> None:
    url = await server.fresh_database()
    async with open_connection(url) as conn:
        await conn.execute((SEEDS / "002.sql").read_text("utf-8"))
        await conn.execute("insert into public.accounts (openclaw_user_id, relay_token_hash) values ('mina', 'x')")

        plan = await adopt_database(url, ACTOR)

        assert plan.groups == ["relay"]
        assert await conn.fetchval("select count(*) from public.accounts") == 1
    assert not (await read_migration_status(url)).pending


async def test_an_empty_database_has_nothing_to_adopt(server: Cluster) -> None:
    url = await server.fresh_database()

    with pytest.raises(MigrationError, match="nothing to adopt"):
        await read_adoption_plan(url)


async def test_a_database_whose_migration_had_stopped_is_adopted(server: Cluster) -> None:
    """As an older version left it: the migrations ran until a table of the same name existed."""
    url = await server.fresh_database()
    async with open_connection(url) as conn:
        await apply_migrations(url, to="20251201090000")
        await conn.execute("set search_path = public")  # the login has the name of the schema pabal
        await conn.execute((SEEDS / "002.sql").read_text("utf-8"))

        assert (await adopt_database(url, ACTOR)).groups == ["relay"]

    assert len((await read_migration_status(url)).applied) == len(load_migrations())


async def test_a_writer_that_waits_for_the_adoption_writes_to_the_new_table(existing: str) -> None:
    async with (
        open_connection(existing) as holder,
        open_connection(existing) as writer,
        open_connection(existing) as observer,
    ):
        transaction = holder.transaction()
        await transaction.start()
        await holder.execute("select from public.event_queue")
        adoption = asyncio.create_task(adopt_database(existing, ACTOR))
        await wait_for_lock_of(observer, adoption)
        late = asyncio.create_task(writer.execute(INSERT_LATE_EVENT))

        async def both_wait() -> bool:
            return await observer.fetchval(COUNT_LOCK_WAITS) == 2

        await wait_until(both_wait)
        await transaction.rollback()
        await adoption
        await late
        due = await writer.fetchval("select count(*) from pabal.event_due where event_type = 'late'")
    assert due == 1


async def test_tables_that_stay_in_use_are_not_adopted(existing: str) -> None:
    async with open_connection(existing) as holder, holder.transaction():
        await holder.execute("select from public.event_queue")

        with pytest.raises(MigrationError, match="nothing was changed: other sessions have used the tables"):
            await adopt_database(existing, ACTOR, table_lock_timeout=timedelta(milliseconds=10))


async def test_a_killed_adoption_changes_nothing(existing: str) -> None:
    async with open_connection(existing) as conn:
        before = await snapshot(conn), await all_rows(conn, specified_tables())
        kills: list[asyncio.Task[Any]] = []

        def kill_session(_: int) -> None:
            if not kills:
                kills.append(asyncio.create_task(conn.fetch(KILL_ADOPTION)))

        with pytest.raises(Unavailable):
            await adopt_database(existing, ACTOR, progress=kill_session)
        await asyncio.gather(*kills)

        assert (await snapshot(conn), await all_rows(conn, specified_tables())) == before
    await adopt_database(existing, ACTOR)
