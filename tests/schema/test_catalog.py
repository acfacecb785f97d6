"""Every object that seed 000 names exists under its name, compared with the seed's own statements."""

import re

import pytest

from support.catalog import OURS, read
from support.clusters import Connection

pytestmark = pytest.mark.anyio

seed = pytest.mark.parametrize("seeded", ["000"], indirect=True)

TABLES = ("service_tokens", "refresh_tokens", "event_queue", "dead_letter_queue")

# Deviations; docs/seeds.md gives the reason of each.
COLUMNS = {
    "public.refresh_tokens.expires_at": "timestamp with time zone not null",
    "public.event_queue.id": "uuid not null default uuid7()",
    "public.dead_letter_queue.event_id": "uuid",
}
CONSTRAINTS = {
    "public.service_tokens.valid_service_name": "FOREIGN KEY (service_name) REFERENCES services(name)",
    "public.refresh_tokens.refresh_tokens_replaced_by_fkey": (
        "FOREIGN KEY (replaced_by) REFERENCES refresh_tokens(id) ON DELETE SET NULL"
    ),
}
# Triggers check them, and their errors carry these names.
CHECKED_BY_TRIGGER = {
    "public.event_queue.valid_source_service",
    "public.event_queue.valid_target_service",
    "public.dead_letter_queue.dead_letter_queue_event_id_fkey",
}
UNIQUE = {"public.idx_service_tokens_token_hash", "public.idx_refresh_tokens_token_hash"}
# Extended by the order in which a service lists its events.
ORDERED = {"public.idx_event_queue_source_service", "public.idx_event_queue_target_service"}
# On columns that change: they are created with the event lane, on its tables.
MOVED_INDEXES = {
    f"public.idx_event_queue_{name}" for name in ("pending", "retry", "status", "processing", "processed_at")
}
# Before version 16 a BRIN index prevents HOT updates, so these two are left out.
BRIN = {"public.idx_event_queue_status", "public.idx_event_queue_processed_at"}
# A btree was written for every event and read by no statement.
NARROWED = "public.idx_event_queue_event_type"
UPDATED_AT = "WHEN ((NOT (new.updated_at IS DISTINCT FROM old.updated_at))) "
FUNCTIONS = {"cleanup_old_events(integer)": "cleanup_old_events(integer,integer)"}


def of_the_seed(objects: dict[str, str]) -> dict[str, str]:
    return {
        name: definition for name, definition in objects.items() if any(f"public.{table}" in name for table in TABLES)
    }


@seed
async def test_the_seeds_columns(seeded: Connection, db: Connection) -> None:
    seed_objects, hub_objects = of_the_seed(await read(seeded, "column")), await read(db, "column")
    assert len(seed_objects) == 14 + 12 + 17 + 16
    assert {name: hub_objects.get(name) for name in seed_objects} == seed_objects | COLUMNS


@seed
async def test_the_seeds_constraints(seeded: Connection, db: Connection) -> None:
    seed_objects, hub_objects = of_the_seed(await read(seeded, "constraint")), await read(db, "constraint")
    assert len(seed_objects) == 6 + 5 + 7 + 3
    kept = {name: definition for name, definition in seed_objects.items() if name not in CHECKED_BY_TRIGGER}
    assert {name: hub_objects.get(name) for name in kept} == kept | CONSTRAINTS
    assert not CHECKED_BY_TRIGGER & hub_objects.keys()


@seed
async def test_the_seeds_indexes(seeded: Connection, db: Connection) -> None:
    seed_objects, hub_objects = await read(seeded, "index"), await read(db, "index")
    seed_objects = {name: definition for name, definition in seed_objects.items() if name.startswith("public.idx_")}
    assert len(seed_objects) == 6 + 4 + 9 + 5
    for name in UNIQUE:
        seed_objects[name] = seed_objects[name].replace("CREATE INDEX", "CREATE UNIQUE INDEX")
    for name in ORDERED:
        seed_objects[name] = seed_objects[name].replace("_service)", "_service, created_at, id)")
    seed_objects[NARROWED] = (
        seed_objects[NARROWED].replace("USING btree", "USING brin") + " WITH (pages_per_range='16', autosummarize='on')"
    )
    moved = MOVED_INDEXES if db.get_server_version().major >= 16 else MOVED_INDEXES - BRIN
    assert {name.rpartition(".")[2] for name in moved} <= {name.rpartition(".")[2] for name in hub_objects}
    unmoved = seed_objects.keys() - MOVED_INDEXES
    assert {name: hub_objects.get(name) for name in unmoved} == {name: seed_objects[name] for name in unmoved}


@seed
async def test_the_seeds_triggers(seeded: Connection, db: Connection) -> None:
    seed_objects, hub_objects = of_the_seed(await read(seeded, "trigger")), await read(db, "trigger")
    assert len(seed_objects) == 4
    dead_letter_trigger = "public.event_queue.event_queue_to_dlq_trigger"
    when_clause = re.compile(r"WHEN \(.*\) EXECUTE")
    new_when_clause = "WHEN (((new.status = 'failed'::text) AND (old.status IS DISTINCT FROM 'failed'::text))) EXECUTE"
    expected = {
        name: when_clause.sub(new_when_clause, definition)
        if name == dead_letter_trigger
        else definition.replace("EXECUTE", f"{UPDATED_AT}EXECUTE")
        for name, definition in seed_objects.items()
    }
    assert {name: hub_objects.get(name) for name in seed_objects} == expected


@seed
async def test_the_seeds_functions(seeded: Connection, db: Connection) -> None:
    seed_objects, hub_objects = await read(seeded, "function"), await read(db, "function")
    created = {"move_event_to_dlq()", "cleanup_expired_tokens()", "cleanup_old_events(integer)"}
    assert created <= seed_objects.keys()
    for name in created:
        body = hub_objects[FUNCTIONS.get(name, name)]
        assert "SECURITY DEFINER" in body
        assert re.search(r"SET search_path TO ''", body), name


@seed
async def test_the_seeds_policies(seeded: Connection, db: Connection) -> None:
    seed_objects, hub_objects = of_the_seed(await read(seeded, "policy")), await read(db, "policy")
    assert len(seed_objects) == 5
    assert {name: hub_objects.get(name) for name in seed_objects} == seed_objects


@seed
async def test_the_seeds_comments_are_verbatim(seeded: Connection, db: Connection) -> None:
    seed_objects, hub_objects = await read(seeded, "comment"), await read(db, "comment")
    assert len(seed_objects) == 13 + 11 + 16 + 16 + 2
    renamed = {
        name.replace("cleanup_old_events(integer)", "cleanup_old_events(integer,integer)"): name
        for name in seed_objects
    }
    assert {name: hub_objects.get(name) for name in renamed} == {
        name: seed_objects[old] for name, old in renamed.items()
    }


async def test_every_table_column_and_function_has_a_comment(db: Connection) -> None:
    rows = await db.fetch(
        f"""
        select c.oid::regclass::text as name
        from pg_class as c join pg_namespace as n on n.oid = relnamespace
        where {OURS} and relkind in ('r', 'p', 'v', 'm') and obj_description(c.oid, 'pg_class') is null
        union all
        select c.oid::regclass || '.' || attname
        from pg_attribute as a join pg_class as c on c.oid = attrelid join pg_namespace as n on n.oid = relnamespace
        where {OURS} and relkind in ('r', 'p') and attnum > 0 and not attisdropped
          and col_description(c.oid, attnum) is null
        union all
        select p.oid::regprocedure::text
        from pg_proc as p join pg_namespace as n on n.oid = pronamespace
        where {OURS} and obj_description(p.oid, 'pg_proc') is null
        """
    )
    assert [row["name"] for row in rows] == []


async def test_every_cascade_has_an_index(db: Connection) -> None:
    """Deleting a row must not scan the tables that refer to it."""
    rows = await db.fetch(
        f"""
        select conrelid::regclass || ' ' || conname as name
        from pg_constraint as k join pg_class as c on c.oid = conrelid join pg_namespace as n on n.oid = relnamespace
        where {OURS} and contype = 'f' and confdeltype in ('c', 'n')
          and not exists (select from pg_index as i where indrelid = conrelid and i.indkey[0] = conkey[1])
        """
    )
    assert [row["name"] for row in rows] == []
