-- name: claim
-- One claim for one or several requests: the n-th elements of the arrays ask for up to :limits[n] events of a service. In total
-- :limit events are claimed, under one lease. Patterns are separated by spaces. With a program, nothing is claimed while its
-- handlers are paused or the service is inactive.
-- The highest priority first, within a priority the longest due. :oldest_quotas[n] of the rows are the longest due of any
-- priority, so that nothing starves. pabal.event_first_due finds the first due row of each priority, or of each requested type and
-- priority; pabal.event_scan reads on from there, a little further than the limit, because other claims may hold the first rows.
-- Rows locked here or in event_queue belong to another transaction and are skipped. The first event of an ordering key and
-- whether one is claimed are separate subqueries, each on an index; in one, the planner reads all events of the key. Two claims
-- that check a key at the same moment may both take from it, if an event before the first became visible in between: the
-- second waits for the first, violates event_order_one_at_a_time, claims nothing and tries again.
-- Rows are found by arrays of ids, due rows by ctid, never by a join: the limit is a parameter, so the planner expects a tenth of
-- the table and would read all of it.
-- An event that has expired or has no attempt left ends here.
with requests as materialized (
    select r.service, string_to_array(r.patterns, ' ') as patterns, string_to_array(r.except_patterns, ' ') as except_patterns,
           r.max_rows, r.oldest_quota
    from unnest(  -- (select …) hides the number of requests from the planner, which would otherwise plan every claim anew
        (select :services::text[]), (select :patterns::text[]), (select :except_patterns::text[]), (select :programs::text[]),
        (select :limits::integer[]), (select :oldest_quotas::integer[])
    ) as r (service, patterns, except_patterns, program, max_rows, oldest_quota)
    where r.program is null or not exists (
        select from public.services s
        left join pabal.subscriptions u on u.service_name = s.name and u.mode = 'handler' and u.program = r.program
        where s.name = r.service and (u.paused_at is not null or not s.is_active)
    )
),
picked as materialized (
    select c.id
    from requests q
    cross join lateral (
        with heads as materialized (
            select h.event_type, h.priority, h.due_at
            from pabal.event_first_due(q.service, q.patterns) h
            where q.except_patterns is null or not h.event_type like any (q.except_patterns)
        ),
        oldest as materialized (  -- of one priority and type, the first rows are the longest due
            select r.row_ctid
            from heads h
            cross join lateral pabal.event_scan(q.service, h.event_type, h.priority, h.due_at, q.oldest_quota) r
            where (select count(*) from heads) > 1
            order by r.due_at
            limit q.oldest_quota
        )
        select d.id
        from (
            select row_ctid from oldest
            union all
            select r.row_ctid
            from heads h
            cross join lateral pabal.event_scan(q.service, h.event_type, h.priority, h.due_at, q.max_rows + 1000) r
            where r.row_ctid not in (select row_ctid from oldest)
        ) r
        cross join lateral (
            select d.id
            from pabal.event_due d
            where d.ctid = r.row_ctid and d.service = q.service and d.due_at <= pabal.now()
              and case when d.ordering_key is null then true
                       when (
                           select l.seq from pabal.event_order l
                           where l.service = d.service and l.ordering_key = d.ordering_key
                           order by l.seq
                           limit 1
                       ) < d.seq then false
                       when (
                           select l.id from pabal.event_order l
                           where l.service = d.service and l.ordering_key = d.ordering_key and l.lease is not null
                           limit 1
                       ) is not null then false
                       else true end
            for update skip locked
        ) d
        limit q.max_rows
    ) c
    limit :limit
),
free as materialized (  -- Up to 2 KB that are not compressed, a payload's size in the table is close to that of its text.
    select e.id,
           case when pg_column_compression(e.payload) is null and pg_column_size(e.payload) < 2000
                then pg_column_size(e.payload) else octet_length(e.payload::text) end as bytes
    from public.event_queue e
    where e.id = any(array(select id from picked))
      and e.status || '' = 'pending'  -- || '' keeps the planner on the index by id
      and e.target_service || '' = any(:services::text[])
    for no key update skip locked
),
fitting as materialized (  -- Runs only if the payloads exceed :max_bytes. In the order of the claim; the others stay due.
    select id
    from (
        select f.id, sum(f.bytes) over (order by p.position) - f.bytes as bytes_before
        from unnest(array(select id from picked)) with ordinality as p (id, position)
        join free f on f.id = p.id
    ) f
    where bytes_before < :max_bytes
),
moved as (  -- A row that changed after this statement began was locked, and checked again, in its new version.
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
    where e.id = any(case when (select sum(bytes) from free) > :max_bytes then array(select id from fitting)
                          else array(select id from free) end)
    returning e.id, e.status, e.event_type, e.source_service, e.target_service, e.payload, e.priority, e.retry_count,
              e.max_retries, e.created_at, e.seq, e.ordering_key, e.correlation_id, e.traceparent, e.origin_id
),
gone as (  -- For events that end here the trigger of the table deletes the due row, as for any change without a lease.
    delete from pabal.event_due d where d.id = any(array(select id from moved where status = 'processing'))
),
held as (
    insert into pabal.event_leases (id, service, processor_id, until, ids, held)
    select :lease, min(target_service), :holder, pabal.now() + :hold::interval, array_agg(id), count(*)
    from moved
    where status = 'processing'
    having count(*) > 0
)
select id, :lease::uuid as lease, event_type, source_service, target_service, payload::text as payload_json, priority, retry_count,
       max_retries, created_at, seq, ordering_key, correlation_id, traceparent, coalesce(origin_id, id) as origin_id
from moved
where status = 'processing';

-- name: revive
-- Makes the events of expired leases due again. The lost attempt counts; an event without attempts left fails. A locked row is
-- being settled, so its lease is left for the next run.
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
        error_history = pabal.append_error(e.error_history, e.retry_count + 1, e.processor_id, 'lease expired', 'lease_expired'),
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
    on conflict (id) do update set due_at = excluded.due_at, is_retry = true  -- a stale due row must not block the others
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
-- Before a settle of several statements. Locks events by id, then leases by id, in the order of every other statement.
with leased as materialized (
    select a.lease
    from unnest(:ids::uuid[], :leases::uuid[]) as a (id, lease)
    join public.event_queue e on e.id = a.id and e.lease = a.lease
    order by a.id
    for no key update of e
)
select l.id from pabal.event_leases l where l.id in (select lease from leased) order by l.id for no key update;

-- name: lock_leased
-- Locks events in the order of their ids, as every other statement does, so that no two wait for each other in a circle.
select e.id
from unnest(:ids::uuid[], :leases::uuid[]) as a (id, lease)
join public.event_queue e on e.id = a.id and e.lease = a.lease
order by a.id
for no key update of e;

-- name: settle_done
-- The fence is the lease: without it, nothing is settled. For events of one lease, the common case: the events of a claim
-- share a lease and mostly end together. The ids are one index scan, which also locks in their order.
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
-- settle_done for events of several leases. Locks events by id, then leases by id, so that statements that settle, extend or
-- cancel the same events cannot deadlock.
with settled as materialized (
    select * from unnest(:ids::uuid[], :leases::uuid[]) as a (id, lease)
),
leased as materialized (
    select a.* from settled a
    join public.event_queue e on e.id = a.id and e.lease = a.lease
    order by a.id
    for no key update of e
),
moved as (
    update public.event_queue e
    set status = 'completed', processed_at = pabal.now(), lease = null, updated_at = pabal.now()
    from leased a
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
with settled as materialized (
    select * from unnest(:ids::uuid[], :leases::uuid[], :delays::interval[], :errors::text[], :codes::text[], :stacks::text[])
        as a (id, lease, delay, error, code, stack)
),
leased as materialized (
    select a.* from settled a
    join public.event_queue e on e.id = a.id and e.lease = a.lease
    order by a.id
    for no key update of e
),
moved as (
    update public.event_queue e
    set status = 'pending',
        lease = null,
        next_retry_at = pabal.now() + a.delay,
        last_error = a.error,
        error_code = a.code,
        error_stack = a.stack,
        error_history = pabal.append_error(e.error_history, e.retry_count + 1, e.processor_id, a.error, a.code),
        updated_at = pabal.now()
    from leased a
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
-- A trigger of the table writes the dead letter, so that plain SQL that fails an event creates one too.
with settled as materialized (
    select * from unnest(:ids::uuid[], :leases::uuid[], :errors::text[], :codes::text[], :stacks::text[])
        as a (id, lease, error, code, stack)
),
leased as materialized (
    select a.* from settled a
    join public.event_queue e on e.id = a.id and e.lease = a.lease
    order by a.id
    for no key update of e
),
moved as (
    update public.event_queue e
    set status = 'failed',
        processed_at = pabal.now(),
        lease = null,
        last_error = a.error,
        error_code = a.code,
        error_stack = a.stack,
        error_history = pabal.append_error(e.error_history, e.retry_count + 1, e.processor_id, a.error, a.code),
        updated_at = pabal.now()
    from leased a
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
-- Does not count the attempt. A first attempt counts as never begun, so processing_started_at is null again.
with settled as materialized (
    select * from unnest(:ids::uuid[], :leases::uuid[], :delays::interval[], :reasons::text[]) as a (id, lease, delay, reason)
),
leased as materialized (
    select a.* from settled a
    join public.event_queue e on e.id = a.id and e.lease = a.lease
    order by a.id
    for no key update of e
),
moved as (
    update public.event_queue e
    set status = 'pending',
        lease = null,
        next_retry_at = pabal.now() + a.delay,
        last_error = a.reason,
        processing_started_at = case when e.retry_count > 0 then e.processing_started_at end,
        retry_count = greatest(e.retry_count - 1, 0),
        updated_at = pabal.now()
    from leased a
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
-- The events of a claim share one lease, so a heartbeat is one narrow update. Returns the events that are no longer held: they
-- were cancelled, or the lease expired. An event that is not held does not extend the lease of the others.
with presented as materialized (
    select a.id, e.lease
    from unnest(:ids::uuid[], :leases::uuid[]) as a (id, lease)
    left join public.event_queue e on e.id = a.id and e.lease = a.lease
),
longer as (
    update pabal.event_leases l
    set until = pabal.now() + :hold::interval
    from (
        select id from pabal.event_leases
        where id = any(array(select p.lease from presented p where p.lease is not null))
        order by id
        for no key update
    ) locked
    where l.id = locked.id
)
select id from presented where lease is null;

-- name: expire
-- Only events that wait: a claimed event never expires.
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
-- Deletes the first :batch events, in the order of created_at, that ended before the retention; locked ones are left for the next pass.
-- Returns the time of the last one, from which the next batch continues: it would read old events that have not ended, and entries of
-- the index that are not vacuumed yet, again. An event that ended before the retention was created before it too. Expressions keep the
-- planner on the index by created_at; it would read all summaries of the indexes by status and processed_at.
with deleted as (
    delete from public.event_queue e
    where e.id = any(array(
        select e.id
        from public.event_queue e
        where e.created_at >= coalesce(:after::timestamptz, '-infinity')
          and e.created_at < pabal.now() - make_interval(days => :days)
          and coalesce(e.processed_at, 'infinity') < pabal.now() - make_interval(days => :days)
          and e.status || '' in ('completed', 'failed', 'cancelled')
        order by e.created_at
        limit :batch
        for update skip locked
    ))
    returning e.created_at
)
select count(*), max(created_at) as last_created_at from deleted;

-- name: services_with_due
-- Which of these services have due events. Ten index probes per service, however many rows are due.
select s.service
from unnest(:services::text[]) as s (service)
where exists (
    select from unnest('{1,2,3,4,5,6,7,8,9,10}'::smallint[]) p
    where (
        select d.due_at from pabal.event_due d where d.service = s.service and d.priority = p order by d.due_at limit 1
    ) <= pabal.now()
);

-- name: list_due_event_types
select distinct h.event_type from pabal.event_first_due(:service, '{%}') h;
