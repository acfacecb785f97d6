-- name: claim
-- Urgent first, longest due first; `aged` of the places go to whatever is longest due, however unurgent, so nothing
-- starves. The heads are where due rows begin: of each priority, or, for who takes only some types, of each of those types
-- and each priority (the one with the longest due head first). From there a road is read for as long as places are free;
-- that it leads a little further is for when others hold what stands first. Whatever is locked, here, in event_queue or by
-- its ordering key, is somebody else's: a claim waits for nobody, so it can be part of no deadlock. Who heads a line and
-- whether one of it is out are asked apart and in the words of an index, or the planner reads the whole line, however long.
-- (Two that look at a key one right after the other may still both take from it; the second then breaks
-- event_lines_one_at_a_time, takes nothing, and looks again.) Rows are found by arrays of ids and places, never by a join:
-- with the limit a parameter the planner guesses a tenth of the table and would read all of it.
-- An event that has expired, or has no attempt left, ends here instead.
with heads as materialized (
    select h.event_type, h.priority, h.due_at from pabal.event_heads(:service, :patterns::text[]) h
),
aged as materialized (
    select r.place
    from heads h
    cross join lateral pabal.event_road(:service, h.event_type, h.priority, h.due_at, :aged) r
    order by r.due_at
    limit :aged
),
picked as materialized (
    select d.id
    from (
        select place from aged
        union all
        select r.place
        from heads h
        cross join lateral pabal.event_road(:service, h.event_type, h.priority, h.due_at, :limit + 1000) r
        where r.place not in (select place from aged)
    ) r
    cross join lateral (
        select d.id
        from pabal.event_due d
        where d.ctid = r.place and d.service = :service and d.due_at <= pabal.now()
          and case when d.ordering_key is null then true
                   when (
                       select l.seq from pabal.event_lines l
                       where l.service = d.service and l.ordering_key = d.ordering_key
                       order by l.seq
                       limit 1
                   ) < d.seq then false
                   when (
                       select l.id from pabal.event_lines l
                       where l.service = d.service and l.ordering_key = d.ordering_key and l.lease is not null
                       limit 1
                   ) is not null then false
                   else pg_try_advisory_xact_lock(hashtextextended(d.service || ' ' || d.ordering_key, 0)) end
        for update skip locked
    ) d
    limit :limit
),
free as materialized (
    select e.ctid as place
    from public.event_queue e
    where e.id = any(array(select id from picked))
      and e.status || '' = 'pending' and e.target_service || '' = :service  -- so written that no index but the id's is asked
    for no key update skip locked
),
moved as (  -- By place, in one pass. A row that changed after this statement began is locked at a place the statement cannot
            -- see yet: it does not move, stays due, and is taken at the next look.
    update public.event_queue e
    set status = case when e.expires_at <= pabal.now() then 'cancelled'
                      when e.processing_started_at is not null and e.retry_count >= e.max_retries then 'failed'
                      else 'processing' end,
        lease = case when e.expires_at <= pabal.now() then null
                     when e.processing_started_at is not null and e.retry_count >= e.max_retries then null
                     else :lease::uuid end,
        processed_at = case when e.expires_at <= pabal.now() then pabal.now()
                            when e.processing_started_at is not null and e.retry_count >= e.max_retries then pabal.now() end,
        last_error = case when e.expires_at <= pabal.now() then 'expired'
                          when e.processing_started_at is not null and e.retry_count >= e.max_retries
                          then coalesce(e.last_error, 'no attempt left')
                          else e.last_error end,
        retry_count = case when e.processing_started_at is not null and e.retry_count < e.max_retries
                           then e.retry_count + 1 else e.retry_count end,
        processor_id = :holder,
        processing_started_at = pabal.now(),
        updated_at = pabal.now()
    where e.ctid = any(array(select place from free))
    returning e.id, e.status, e.event_type, e.source_service, e.payload, e.priority, e.retry_count, e.max_retries,
              e.created_at, e.seq, e.ordering_key, e.correlation_id, e.traceparent, e.origin_id
),
gone as (  -- One that ends here is followed by the table's own trigger, as any change without a lease is.
    delete from pabal.event_due d where d.id = any(array(select id from moved where status = 'processing'))
),
held as (
    insert into pabal.event_leases (id, service, processor_id, until, ids, held)
    select :lease, :service, :holder, pabal.now() + :hold::interval, array_agg(id), count(*)
    from moved
    where status = 'processing'
    having count(*) > 0
)
select id, :lease::uuid as lease, event_type, source_service, :service as target_service, payload, priority, retry_count, max_retries,
       created_at, seq, ordering_key, correlation_id, traceparent, coalesce(origin_id, id) as origin_id
from moved
where status = 'processing';

-- name: revive
-- Leases that ended: their rows fall due again and the crash counts as an attempt; the last one is a death. A row that is
-- locked is being settled this very moment, so its lease waits for the next look.
with ended as materialized (
    select l.id, l.ids
    from pabal.event_leases l
    where l.until <= pabal.now()
    order by l.until
    limit :batch
    for update skip locked
),
held as materialized (
    select e.id, l.id as lease
    from ended l
    cross join lateral unnest(l.ids) i
    join public.event_queue e on e.id = i and e.lease = l.id
    for no key update of e skip locked
),
moved as (
    update public.event_queue e
    set status = case when e.retry_count >= e.max_retries then 'failed' else 'pending' end,
        processed_at = case when e.retry_count >= e.max_retries then pabal.now() end,
        lease = null,
        last_error = 'lease expired',
        error_code = 'lease_expired',
        error_history = pabal.remember(e.error_history, e.retry_count + 1, e.processor_id, 'lease expired', 'lease_expired'),
        updated_at = pabal.now()
    from held h
    where e.id = h.id and e.lease = h.lease
    returning e.*
),
due as (
    insert into pabal.event_due (id, service, priority, due_at, seq, ordering_key, expires_at, is_retry, event_type)
    select id, target_service, priority, pabal.now(), seq, ordering_key, expires_at, true, event_type
    from moved
    where status = 'pending'
    on conflict (id) do update set due_at = excluded.due_at, is_retry = true  -- a stray row must not stop everybody
),
locked as materialized (
    select distinct d.id
    from ended d
    cross join lateral unnest(d.ids) i
    join public.event_queue e on e.id = i and e.lease = d.id
    where e.id not in (select id from held)
),
gone as (
    delete from pabal.event_leases l
    using ended d
    where l.id = d.id and d.id not in (select id from locked)
),
freed as (
    update pabal.event_leases l set held = l.held - f.count
    from (select lease, count(*) from held group by lease) f
    where l.id = f.lease and l.id in (select id from locked)
)
select count(*) filter (where status = 'pending') as due, count(*) filter (where status = 'failed') as dead from moved;

-- name: lock
-- Before a settle of several statements: events first and by id, their leases after them, as every other change does.
with mine as materialized (
    select a.lease
    from unnest(:ids::uuid[], :leases::uuid[]) as a (id, lease)
    join public.event_queue e on e.id = a.id and e.lease = a.lease
    order by a.id
    for no key update of e
)
select l.id from pabal.event_leases l where l.id in (select lease from mine) order by l.id for no key update;

-- name: lock_leased
-- Locks events in the order of their ids, as every other statement does, so that no two wait for each other in a circle.
select e.id
from unnest(:ids::uuid[], :leases::uuid[]) as a (id, lease)
join public.event_queue e on e.id = a.id and e.lease = a.lease
order by a.id
for no key update of e;

-- name: settle_done
-- The fence is the lease: whoever lost it settles nothing. One statement a lease, because a claim's events share theirs and
-- mostly end together: the ids are then one index scan, which also locks in their order.
with moved as (
    update public.event_queue e
    set status = 'completed', processed_at = pabal.now(), lease = null, updated_at = pabal.now()
    where e.id = any(:ids::uuid[]) and e.lease = :lease
    returning e.id
),
freed as (
    update pabal.event_leases l set held = l.held - m.count
    from (select count(*) from moved) m
    where l.id = :lease and m.count > 0
)
select id from moved;

-- name: settle_done_many_leases
-- The same for events of many leases. Events are locked in the order of their ids, then leases in theirs, so that nobody
-- who settles, extends or cancels the same ones waits in a circle.
with asked as materialized (
    select * from unnest(:ids::uuid[], :leases::uuid[]) as a (id, lease)
),
mine as materialized (
    select a.* from asked a
    join public.event_queue e on e.id = a.id and e.lease = a.lease
    order by a.id
    for no key update of e
),
moved as (
    update public.event_queue e
    set status = 'completed', processed_at = pabal.now(), lease = null, updated_at = pabal.now()
    from mine a
    where e.id = a.id
    returning e.id, a.lease
),
freed as (
    update pabal.event_leases l set held = l.held - f.count
    from (
        select l.id, m.count
        from (select lease, count(*) from moved group by lease) m
        join pabal.event_leases l on l.id = m.lease
        order by l.id
        for no key update of l
    ) f
    where l.id = f.id
)
select id from moved;

-- name: settle_retry
with asked as materialized (
    select * from unnest(:ids::uuid[], :leases::uuid[], :delays::interval[], :errors::text[], :codes::text[], :stacks::text[])
        as a (id, lease, after, why, code, stack)
),
mine as materialized (
    select a.* from asked a
    join public.event_queue e on e.id = a.id and e.lease = a.lease
    order by a.id
    for no key update of e
),
moved as (
    update public.event_queue e
    set status = 'pending',
        lease = null,
        next_retry_at = pabal.now() + a.after,
        last_error = a.why,
        error_code = a.code,
        error_stack = a.stack,
        error_history = pabal.remember(e.error_history, e.retry_count + 1, e.processor_id, a.why, a.code),
        updated_at = pabal.now()
    from mine a
    where e.id = a.id
    returning e.id, a.lease, e.target_service, e.priority, e.next_retry_at, e.seq, e.ordering_key, e.expires_at, e.event_type
),
due as (
    insert into pabal.event_due (id, service, priority, due_at, seq, ordering_key, expires_at, is_retry, event_type)
    select id, target_service, priority, next_retry_at, seq, ordering_key, expires_at, true, event_type from moved
    on conflict (id) do update set due_at = excluded.due_at, is_retry = excluded.is_retry
),
freed as (
    update pabal.event_leases l set held = l.held - f.count
    from (
        select l.id, m.count
        from (select lease, count(*) from moved group by lease) m
        join pabal.event_leases l on l.id = m.lease
        order by l.id
        for no key update of l
    ) f
    where l.id = f.id
)
select id from moved;

-- name: settle_dead
-- The dead letter is written by the table's own trigger, so that plain SQL makes one too.
with asked as materialized (
    select * from unnest(:ids::uuid[], :leases::uuid[], :errors::text[], :codes::text[], :stacks::text[])
        as a (id, lease, why, code, stack)
),
mine as materialized (
    select a.* from asked a
    join public.event_queue e on e.id = a.id and e.lease = a.lease
    order by a.id
    for no key update of e
),
moved as (
    update public.event_queue e
    set status = 'failed',
        processed_at = pabal.now(),
        lease = null,
        last_error = a.why,
        error_code = a.code,
        error_stack = a.stack,
        error_history = pabal.remember(e.error_history, e.retry_count + 1, e.processor_id, a.why, a.code),
        updated_at = pabal.now()
    from mine a
    where e.id = a.id
    returning e.id, a.lease
),
freed as (
    update pabal.event_leases l set held = l.held - f.count
    from (
        select l.id, m.count
        from (select lease, count(*) from moved group by lease) m
        join pabal.event_leases l on l.id = m.lease
        order by l.id
        for no key update of l
    ) f
    where l.id = f.id
)
select id from moved;

-- name: settle_snooze
-- The attempt is given back. A first attempt given back is as if it had never begun: processing_started_at says so.
with asked as materialized (
    select * from unnest(:ids::uuid[], :leases::uuid[], :delays::interval[], :reasons::text[]) as a (id, lease, after, why)
),
mine as materialized (
    select a.* from asked a
    join public.event_queue e on e.id = a.id and e.lease = a.lease
    order by a.id
    for no key update of e
),
moved as (
    update public.event_queue e
    set status = 'pending',
        lease = null,
        next_retry_at = pabal.now() + a.after,
        last_error = a.why,
        processing_started_at = case when e.retry_count > 0 then e.processing_started_at end,
        retry_count = greatest(e.retry_count - 1, 0),
        updated_at = pabal.now()
    from mine a
    where e.id = a.id
    returning e.id, a.lease, e.target_service, e.priority, e.next_retry_at, e.seq, e.ordering_key, e.expires_at,
              e.retry_count, e.event_type
),
due as (
    insert into pabal.event_due (id, service, priority, due_at, seq, ordering_key, expires_at, is_retry, event_type)
    select id, target_service, priority, next_retry_at, seq, ordering_key, expires_at, retry_count > 0, event_type from moved
    on conflict (id) do update set due_at = excluded.due_at, is_retry = excluded.is_retry
),
freed as (
    update pabal.event_leases l set held = l.held - f.count
    from (
        select l.id, m.count
        from (select lease, count(*) from moved group by lease) m
        join pabal.event_leases l on l.id = m.lease
        order by l.id
        for no key update of l
    ) f
    where l.id = f.id
)
select id from moved;

-- name: extend
-- A claim's events share one lease, so a heartbeat is one narrow update however many are held. What is asked for and no
-- longer held is told back: it was cancelled, or the lease ended and somebody else has it.
with longer as (
    update pabal.event_leases l
    set until = pabal.now() + :hold::interval
    from (select id from pabal.event_leases where id = any(:leases::uuid[]) order by id for no key update) mine
    where l.id = mine.id
)
select a.id
from unnest(:ids::uuid[], :leases::uuid[]) as a (id, lease)
left join public.event_queue e on e.id = a.id and e.lease = a.lease
where e.id is null;

-- name: expire
-- Only what waits: an event somebody holds is never expired under its holder.
with late as materialized (
    select d.id from pabal.event_due d
    where d.expires_at <= pabal.now()
    order by d.expires_at
    limit :batch
    for update skip locked
),
free as materialized (
    select e.id from late l join public.event_queue e on e.id = l.id
    where e.status || '' = 'pending'
    for no key update of e skip locked
)
update public.event_queue e
set status = 'cancelled', processed_at = pabal.now(), last_error = 'expired'
from free f
where e.id = f.id;

-- name: purge
select public.cleanup_old_events(:days, :batch);

-- name: services_with_due
-- One index probe a service, however many rows wait.
with recursive each as (
    (select d.service from pabal.event_due d order by d.service limit 1)
    union all
    select (select d.service from pabal.event_due d where d.service > each.service order by d.service limit 1)
    from each
    where each.service is not null
)
select e.service
from each e
where e.service is not null
  and exists (
      select from unnest('{1,2,3,4,5,6,7,8,9,10}'::smallint[]) p
      where (
          select d.due_at from pabal.event_due d where d.service = e.service and d.priority = p order by d.due_at limit 1
      ) <= pabal.now()
  );
