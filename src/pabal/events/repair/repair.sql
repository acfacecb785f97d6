-- name: advance_ordered_events
-- Checks once, for each event queued behind another with the same ordering key, that a predecessor exists: finishing it makes
-- the event due. A locked predecessor may be finishing, so it does not count, and the event is checked again.
with unsure as materialized (
    select l.service, l.ordering_key, l.seq, l.id
    from pabal.event_order l
    where not l.is_checked
    order by l.seq
    limit :batch
    for no key update skip locked
),
seen as materialized (
    select u.id, before.id is not null as has_predecessor,
           u.seq = (
               select p.seq from pabal.event_order p
               where p.service = u.service and p.ordering_key = u.ordering_key
               order by p.seq
               limit 1
           ) as is_head
    from unsure u
    left join lateral (
        select p.id
        from pabal.event_order p
        where p.service = u.service and p.ordering_key = u.ordering_key and p.seq < u.seq
        order by p.seq desc
        limit 1
        for key share skip locked
    ) before on true
),
heads as materialized (  -- events locked by another transaction are checked again
    select e.* from seen s join public.event_queue e on e.id = s.id where s.is_head for share of e skip locked
),
due as (
    insert into pabal.event_due (id, service, priority, due_at, seq, ordering_key, expires_at, is_retry, event_type)
    select id, target_service, priority, coalesce(next_retry_at, pabal.now()), seq, ordering_key, expires_at, retry_count > 0,
           event_type
    from heads
    where status = 'pending'
    on conflict (id) do nothing
)
update pabal.event_order l set is_checked = true
from seen s
where l.id = s.id and (s.has_predecessor or s.id in (select id from heads));

-- name: list_positions
select name, after from pabal.event_repair_positions;

-- name: save_position
insert into pabal.event_repair_positions as p (name, after) values (:name, :after)
on conflict (name) do update set after = excluded.after;

-- name: reset_position
delete from pabal.event_repair_positions where name = :name;

-- name: find_recent_ids
-- Of events that were published in the last :period, or are by a clock that is a minute fast: the first 48 bits are milliseconds.
select rpad(lpad(to_hex((extract(epoch from clock_timestamp() - :period::interval) * 1000)::bigint), 12, '0'), 32, '0')::uuid as first,
       rpad(lpad(to_hex((extract(epoch from clock_timestamp() + interval '1 minute') * 1000)::bigint), 12, '0'), 32, 'f')::uuid
           as last;

-- The four statements that follow read a slice of one table in the order of its ids and change nothing. Both sides of a
-- comparison change in the same transaction, so in one snapshot they agree; a difference is damage. Other tables are read by
-- subqueries and lateral joins, one index probe for each row of the slice: with a join, the planner may read all of them.

-- name: check_events
-- Pending events without a due row, which no claim would find, claimed events whose lease does not exist, and claims of plain SQL
-- that are not listed, such as inserted ones. An event that is the first of its ordering key but not checked yet is left to
-- advance_ordered_events, which makes it due.
with slice as materialized (
    select e.id, e.status, e.lease, e.target_service, e.ordering_key, e.seq
    from public.event_queue e
    where e.id > :after
    order by e.id
    limit :window
)
select s.id
from slice s
where case
    when s.status = 'pending' and s.target_service is not null then
        (select d.id from pabal.event_due d where d.id = s.id) is null
        and (s.ordering_key is null or coalesce((
            select o.seq from pabal.event_order o
            where o.service = s.target_service and o.ordering_key = s.ordering_key
            order by o.seq
            limit 1
        ) >= s.seq, true))
        and (select o.id from pabal.event_order o where o.id = s.id and not o.is_checked) is null
    when s.status = 'processing' and s.lease is not null then
        (select l.id from pabal.event_leases l where l.id = s.lease and s.id = any(l.ids)) is null
    when s.status = 'processing' and s.target_service is not null then
        (select c.id from pabal.plain_claims c where c.id = s.id) is null
end;

-- name: check_due
-- Due rows of events that are deleted, not pending, or have other values.
with slice as materialized (
    select d.* from pabal.event_due d where d.id > :after order by d.id limit :window
)
select s.id
from slice s
left join lateral (
    select e.status, e.target_service, e.priority, e.event_type, e.ordering_key, e.expires_at
    from public.event_queue e
    where e.id = s.id
    offset 0
) e on true
where e.status is distinct from 'pending'
   or (s.service, s.priority, s.event_type) <> (e.target_service, e.priority, e.event_type)
   or (s.ordering_key, s.expires_at) is distinct from (e.ordering_key, e.expires_at);

-- name: check_order
-- Rows of events that have finished or are deleted, or whose lease differs from the event's.
with slice as materialized (
    select o.id, o.lease from pabal.event_order o where o.id > :after order by o.id limit :window
)
select s.id
from slice s
left join lateral (select e.status, e.lease from public.event_queue e where e.id = s.id offset 0) e on true
where e.status is null or e.status in ('completed', 'failed', 'cancelled') or s.lease is distinct from e.lease;

-- name: check_leases
-- Leases with a wrong number of events.
with slice as materialized (
    select l.id, l.ids, l.held from pabal.event_leases l where l.id > :after order by l.id limit :window
)
select s.id
from slice s
where s.held <> (
    select count((select e.id from public.event_queue e where e.id = i and e.lease = s.id)) from unnest(s.ids) i
);

-- name: find_event_position
-- The last id of the slice; null if it is the end of the table. One scan of the index.
select e.id from public.event_queue e where e.id > :after order by e.id offset :window - 1 limit 1;

-- name: find_due_position
select d.id from pabal.event_due d where d.id > :after order by d.id offset :window - 1 limit 1;

-- name: find_order_position
select o.id from pabal.event_order o where o.id > :after order by o.id offset :window - 1 limit 1;

-- name: find_lease_position
select l.id from pabal.event_leases l where l.id > :after order by l.id offset :window - 1 limit 1;

-- name: add_missing_due
with lost as materialized (
    select e.*
    from public.event_queue e
    where e.id = any(:ids::uuid[]) and e.status = 'pending' and e.target_service is not null
      and not exists (select from pabal.event_due d where d.id = e.id)
      and (e.ordering_key is null or not exists (
          select from pabal.event_order l
          where l.service = e.target_service and l.ordering_key = e.ordering_key and l.seq < e.seq
      ))
    for no key update skip locked
),
ordered as (
    insert into pabal.event_order (service, ordering_key, seq, id, is_checked)
    select target_service, ordering_key, seq, id, true
    from lost
    where ordering_key is not null
    on conflict (id) do nothing
)
insert into pabal.event_due (id, service, priority, due_at, seq, ordering_key, expires_at, is_retry, event_type)
select id, target_service, priority, coalesce(next_retry_at, pabal.now()), seq, ordering_key, expires_at, retry_count > 0, event_type
from lost
on conflict (id) do nothing;

-- name: delete_stale_due
-- add_missing_due then adds the right rows.
delete from pabal.event_due d
using (
    select d.id
    from pabal.event_due d
    left join public.event_queue e on e.id = d.id
    where d.id = any(:ids::uuid[]) and (
        e.status is distinct from 'pending'
        or (d.service, d.priority, d.event_type) <> (e.target_service, e.priority, e.event_type)
        or (d.ordering_key, d.expires_at) is distinct from (e.ordering_key, e.expires_at)
    )
    for update of d skip locked
) stale
where d.id = stale.id;

-- name: requeue_events_without_lease
-- As if the lease had expired. (An event in `processing` without a lease was claimed by plain SQL; plain_claims.sql returns it.)
with lost as materialized (
    select e.id
    from public.event_queue e
    where e.id = any(:ids::uuid[]) and e.status = 'processing' and e.lease is not null
      and not exists (select from pabal.event_leases l where l.id = e.lease and e.id = any(l.ids))
    for no key update skip locked
),
moved as (
    update public.event_queue e
    set status = 'pending', lease = null, last_error = 'lease lost', updated_at = pabal.now()
    from lost
    where e.id = lost.id
    returning e.*
)
insert into pabal.event_due (id, service, priority, due_at, seq, ordering_key, expires_at, is_retry, event_type)
select id, target_service, priority, pabal.now(), seq, ordering_key, expires_at, true, event_type from moved
on conflict (id) do nothing;

-- name: list_missing_plain_claims
insert into pabal.plain_claims (id)
select e.id
from public.event_queue e
where e.id = any(:ids::uuid[]) and e.status || '' = 'processing' and e.lease is null and e.target_service is not null
on conflict do nothing;

-- name: recount_leases
-- A locked lease is being updated and is checked again when its turn comes.
update pabal.event_leases l
set held = c.held
from (
    select l.id, h.held
    from pabal.event_leases l
    cross join lateral (
        select count(*) as held from unnest(l.ids) i join public.event_queue e on e.id = i and e.lease = l.id
    ) h
    where l.id = any(:ids::uuid[]) and l.held <> h.held
    for no key update of l skip locked
) c
where l.id = c.id;

-- name: remove_stale_order
-- Rows of events that have finished or are deleted.
select count(pabal.remove_from_event_order(gone.id))
from (
    select l.id
    from pabal.event_order l
    left join public.event_queue e on e.id = l.id
    where l.id = any(:ids::uuid[]) and (e.status is null or e.status in ('completed', 'failed', 'cancelled'))
) gone;

-- name: repair_order_leases
-- Rows whose lease differs from the event's.
update pabal.event_order l
set lease = e.lease
from public.event_queue e
where e.id = l.id and l.lease is distinct from e.lease
  and l.id in (
      select l.id from pabal.event_order l join public.event_queue e on e.id = l.id
      where l.id = any(:ids::uuid[]) and l.lease is distinct from e.lease
      for update of l skip locked
  );
