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

-- name: add_missing_due
-- Pending events without a due row, which no claim would find. Both tables change in the same transaction, so in one snapshot
-- they agree; a difference is damage.
with lost as materialized (
    select e.id
    from public.event_queue e
    where e.status = 'pending' and e.target_service is not null
      and not exists (select from pabal.event_due d where d.id = e.id)
      and (e.ordering_key is null or not exists (
          select from pabal.event_order l
          where l.service = e.target_service and l.ordering_key = e.ordering_key and l.seq < e.seq
      ))
    limit :batch
    for no key update skip locked
),
ordered as (
    insert into pabal.event_order (service, ordering_key, seq, id, is_checked)
    select e.target_service, e.ordering_key, e.seq, e.id, true
    from lost join public.event_queue e using (id)
    where e.ordering_key is not null
    on conflict (id) do nothing
)
insert into pabal.event_due (id, service, priority, due_at, seq, ordering_key, expires_at, is_retry, event_type)
select e.id, e.target_service, e.priority, coalesce(e.next_retry_at, pabal.now()), e.seq, e.ordering_key, e.expires_at,
       e.retry_count > 0, e.event_type
from lost join public.event_queue e using (id)
on conflict (id) do nothing;

-- name: delete_stale_due
-- Due rows of events that are deleted, not pending, or have other values; add_missing_due then adds the right row.
delete from pabal.event_due d
using (
    select d.id
    from pabal.event_due d
    left join public.event_queue e on e.id = d.id
    where e.status is distinct from 'pending'
       or (d.service, d.priority, d.event_type) <> (e.target_service, e.priority, e.event_type)
       or (d.ordering_key, d.expires_at) is distinct from (e.ordering_key, e.expires_at)
    limit :batch
    for update of d skip locked
) stale
where d.id = stale.id;

-- name: requeue_events_without_lease
-- Events whose lease no longer exists: as if it had expired. (An event in `processing` without a lease was claimed by plain
-- SQL; plain_claims.sql returns it.)
with lost as materialized (
    select e.id
    from public.event_queue e
    where e.status = 'processing' and e.lease is not null
      and not exists (select from pabal.event_leases l where l.id = e.lease and e.id = any(l.ids))
    limit :batch
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

-- name: recount_leases
-- Leases with a wrong number of events. A locked lease is being updated and is checked at the next run.
update pabal.event_leases l
set held = c.held
from (
    select l.id, h.held
    from pabal.event_leases l
    cross join lateral (
        select count(*) as held from unnest(l.ids) i join public.event_queue e on e.id = i and e.lease = l.id
    ) h
    where l.held <> h.held
    limit :batch
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
    where e.status is null or e.status in ('completed', 'failed', 'cancelled')
    limit :batch
) gone;

-- name: repair_order_leases
-- Rows whose lease differs from the event's.
update pabal.event_order l
set lease = e.lease
from public.event_queue e
where e.id = l.id and l.lease is distinct from e.lease
  and l.id in (
      select l.id from pabal.event_order l join public.event_queue e on e.id = l.id
      where l.lease is distinct from e.lease
      limit :batch
      for update of l skip locked
  );
