"""A partitioned form of the event table, and the lane's statements written for it. Only the benchmark uses them."""

import re
import time
from typing import Any
from uuid import UUID

from pabal.db.queries import Query

DAY_MS = 86_400_000
STORAGE = "fillfactor = 50, autovacuum_enabled = off"
"""As the table's, but vacuumed only when the benchmark says so."""

OBJECTS = """
select pg_get_indexdef(i.indexrelid) as definition, 1 as rank from pg_index i
where i.indrelid = 'public.event_queue'::regclass and not i.indisprimary
union all
select pg_get_triggerdef(t.oid), 2 from pg_trigger t
where t.tgrelid = 'public.event_queue'::regclass and not t.tgisinternal
union all
select pg_get_functiondef(d.objid), 3 from pg_depend d
where d.refobjid = 'public.event_queue'::regclass and d.classid = 'pg_proc'::regclass group by d.objid
order by rank
"""
"""What has to be created again: functions with a parsed body refer to the table by its oid."""

REPLACE_TABLE = """
alter table public.event_queue alter column seq drop identity;
create sequence pabal.event_seq;
grant usage on sequence pabal.event_seq to service_role;
alter table public.event_queue alter column seq set default nextval('pabal.event_seq');
alter table public.event_queue rename to former_queue;
alter table public.former_queue rename constraint event_queue_pkey to former_queue_pkey;
create table public.event_queue (like public.former_queue including defaults including constraints including storage)
partition by range (id);
alter table public.event_queue add primary key (id);
alter table public.event_queue enable row level security;
create policy "event_queue_service_role_all" on public.event_queue
for all to service_role using (true) with check (true);
grant select, insert, update, delete on table public.event_queue to service_role;
"""

FREE = "where e.id = any(array(select id from picked))"
MOVED = "where e.id = any(case when"
MOVED_COLUMNS = """
id uuid, status text, event_type text, source_service text, target_service text, payload jsonb, priority integer,
retry_count integer, max_retries integer, created_at timestamptz, seq bigint, ordering_key text, correlation_id text,
traceparent text, origin_id uuid
"""


def first_id(day: int) -> UUID:
    """The lowest UUIDv7 of a day, counted from the epoch."""
    return UUID(int=day * DAY_MS << 80)


def today() -> int:
    return int(time.time() * 1000) // DAY_MS


async def partition_table(owner: Any, count: int) -> None:
    """Replace the empty event table: `count` partitions of a day each, up to today, and one for other ids."""
    objects = [row["definition"] for row in await owner.fetch(OBJECTS)]
    indexes = [
        definition.split()[definition.split().index("INDEX") + 1] for definition in objects if " INDEX " in definition
    ]
    async with owner.transaction():
        await owner.execute("truncate public.event_queue")
        for index in indexes:
            await owner.execute(f"drop index public.{index}")
        await owner.execute(REPLACE_TABLE)
        for definition in objects:
            await owner.execute(definition)
        await owner.execute("drop table public.former_queue")
        for day in range(today() - count + 1, today() + 1):
            await owner.execute(
                f"create table pabal.event_queue_{day} partition of public.event_queue "
                f"for values from ('{first_id(day)}') to ('{first_id(day + 1)}') with ({STORAGE})"
            )
            await owner.execute(f"alter table pabal.event_queue_{day} enable row level security")
        await owner.execute(
            f"create table pabal.event_queue_other partition of public.event_queue default with ({STORAGE})"
        )


def settle_in_range(settle: Query) -> str:
    """The settle with the range of its ids as two more parameters, by which partitions are pruned before it starts."""
    low, high = len(settle.parameters) + 1, len(settle.parameters) + 2
    found = f"e.id = any(${settle.parameters.index('ids') + 1}::uuid[])"
    assert found in settle.sql
    return settle.sql.replace(found, f"{found} and e.id >= ${low}::uuid and e.id <= ${high}::uuid")


def claim_in_range(claim: Query) -> str:
    """The claim with the range of the ids that it picked. Partitions are pruned only after all are opened."""
    sql = claim.sql
    for found, source in ((FREE, "picked"), (MOVED, "free")):
        assert found in sql
        bounds = f"e.id >= (select id from {source} order by id limit 1)"
        bounds += f" and e.id <= (select id from {source} order by id desc limit 1)"
        sql = sql.replace(found, f"where {bounds} and {found.removeprefix('where ')}")
    return sql


def claim_by_function(claim: Query) -> tuple[str, str]:
    """The claim with its part on event_queue in a function, and the function.

    There the ids and their range are parameters, so that partitions are pruned before they are opened.
    """
    head, _, rest = claim.sql.partition("free as materialized (")
    body, _, tail = rest.partition("gone as (")
    numbers = {name: claim.parameters.index(name) + 1 for name in ("services", "max_bytes", "lease", "holder")}
    for name, number in numbers.items():
        body = re.sub(rf"\${number}\b(?:::[a-z]+(?:\[\])?)?", f"move_claimed.{name}", body)
    body = body.replace(FREE, "where e.id = any(ids) and e.id >= low and e.id <= high")
    body = body.replace(MOVED, f"where e.id >= low and e.id <= high and {MOVED.removeprefix('where ')}")
    body = body.replace("array(select id from picked)", "ids").rstrip().removesuffix(",")
    call = f"""moved as materialized (
        select m.*
        from (select array_agg(id order by id) as ids from picked) p
        cross join lateral pabal.move_claimed(
            p.ids, p.ids[1], p.ids[cardinality(p.ids)], {", ".join(f"${number}" for number in numbers.values())}
        ) m
        where p.ids is not null
    ),
    gone as ("""
    function = f"""
    create function pabal.move_claimed(
        ids uuid[], low uuid, high uuid, services text[], max_bytes bigint, lease uuid, holder text
    ) returns table ({MOVED_COLUMNS})
    language plpgsql rows 500
    as $body$
    #variable_conflict use_column
    begin
      return query with free as materialized ({body} select * from moved;
    end
    $body$
    """
    return head + call + tail, function
