"""A large database: future, finished, ordered and other services' rows must not make a claim slower."""

import json
from collections.abc import Mapping

from pabal.db.queries import Query
from support.clusters import Connection

FUTURE = FINISHED = 200_000
OTHERS = PARKED = 100_000
DUE = 50
FEW = 5
"""Events sent by the hub, and events received by it."""

ACCOUNT = "00000000-0000-7000-9000-000000000001"
FLOODED = "00000000-0000-7000-9000-000000000002"

FILL = f"""
set session_replication_role = replica;  -- the tables of the event lane are filled below, each in one statement
create function pg_temp.numbered(block integer, number bigint) returns uuid language sql immutable
    return (lpad(to_hex(block), 8, '0') || '-0000-7000-8000-' || lpad(to_hex(number), 12, '0'))::uuid;

insert into public.event_queue
    (id, event_type, source_service, target_service, status, created_at, processed_at, next_retry_at, ordering_key)
select pg_temp.numbered(block, n), event_type, source, service, status, now() - n * interval '1 ms',
       case when status = 'completed' then now() - interval '1 hour' end,
       case when block = 2 then now() + interval '1 hour' + n * interval '1 ms' end,
       case when block = 4 then 'one key' end
from (values (1, 'order.paid', 'minu_find', 'minu_build', 'completed', {FINISHED}),
             (2, 'order.paid', 'minu_find', 'minu_build', 'pending', {FUTURE}),
             (3, 'order.paid', 'minu_find', 'minu_keep', 'pending', {OTHERS}),
             (4, 'order.paid', 'minu_find', 'minu_frame', 'pending', {PARKED}),
             (5, 'order.paid', 'minu_find', 'minu_build', 'pending', {DUE}),
             (6, 'cart.filled', 'hub', 'minu_keep', 'pending', {FEW}),
             (7, 'cart.filled', 'minu_find', 'hub', 'pending', {FEW}))
         as c (block, event_type, source, service, status, many),
     generate_series(1, many) n;
insert into pabal.event_order (service, ordering_key, seq, id, is_checked)
select target_service, ordering_key, seq, id, true from public.event_queue where ordering_key is not null;
insert into pabal.event_due (id, service, priority, due_at, seq, ordering_key, is_retry, event_type)
select id, target_service, priority, coalesce(next_retry_at, now()), seq, ordering_key, next_retry_at is not null,
       event_type
from public.event_queue
where status = 'pending'
  and (ordering_key is null or id = pg_temp.numbered(4, 1));

insert into notification.templates (key, category, texts, checksum)
values ('payment.succeeded', 'payment', '{{}}', 'x');
insert into notification.requests
    (id, recipient_type, recipient_id, template_key, payload, state, sent_at, ended_at, scheduled_at, expires_at)
select pg_temp.numbered(block, n), 'dashboard_toast', (n % 1000)::text, 'payment.succeeded', '{{}}', state,
       case when block = 1 then now() - interval '1 hour' end, case when block = 1 then now() - interval '1 hour' end,
       case block when 2 then now() + interval '1 hour' + n * interval '1 ms' else now() end, now() + interval '2 hours'
from (values (1, 'sent', {FINISHED}), (2, 'pending', {FUTURE}), (5, 'pending', {DUE})) as c (block, state, many),
     generate_series(1, many) n;

insert into public.accounts (id, openclaw_user_id)
values ('{ACCOUNT}', 'busy'), ('{FLOODED}', 'flooded');
insert into public.inbound_messages
    (id, account_id, conversation_key, kakao_payload, normalized, source_event_id, status, acked_at, ended_at, reason)
select pg_temp.numbered(block, n), account::uuid, 'bot:user', '{{}}', '{{}}', block || ' ' || n, status,
       case when block = 1 then now() - interval '1 hour' end, case when block = 1 then now() - interval '1 hour' end,
       case when block = 1 then 'acked' end
from (values (1, '{ACCOUNT}', 'ACKED', {FINISHED}), (3, '{FLOODED}', 'QUEUED', {OTHERS}),
             (5, '{ACCOUNT}', 'QUEUED', {DUE})) as c (block, account, status, many),
     generate_series(1, many) n;
reset session_replication_role;
"""


DELETE_STATISTICS = """
delete from pg_statistic where starelid::regclass::text ~ '(event_|requests|messages)';
select pg_clear_relation_stats(schemaname, relname)
from pg_stat_user_tables
where relname ~ '(event_|requests|messages)';
"""
"""Remove all statistics, as before the first autovacuum."""


async def count_pages(
    owner: Connection, query: Query, given: Mapping[str, object], *, prepare: str = "", grow: str = ""
) -> tuple[int, int]:
    """Run a query and roll it back. Returns the pages it touched and the rows it returned.

    `grow` is a statement that fills tables after the query was planned.
    """
    values = ", ".join(literal(value) for value in query.bind(dict(given)))
    work = owner.transaction()
    await work.start()
    try:
        await owner.execute(f"{prepare}; prepare measured as {query.sql}")
        call = f"execute measured ({values})" if values else "execute measured"
        await owner.execute(f"savepoint warm; {call}; rollback to warm")  # the catalog is read once a session
        if grow:
            await owner.execute(grow)
        [plan] = json.loads(await owner.fetchval(f"explain (analyze, buffers, format json) {call}"))
        return plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"], plan["Plan"]["Actual Rows"]
    finally:
        await work.rollback()
        await owner.execute("deallocate all")


def literal(value: object) -> str:
    if value is None:
        return "null"
    if not isinstance(value, list):
        return f"'{value}'"
    return "'{" + ",".join("null" if element is None else f'"{element}"' for element in value) + "}'"
