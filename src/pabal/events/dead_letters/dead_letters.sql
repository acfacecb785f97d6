-- name: list_dead_letters
-- The newest first, without the large columns. Unresolved dead letters have a partial index, so each state is a branch of its
-- own: the branches for other states are never executed, and a year of resolved dead letters costs nothing. The filters are
-- outside the branches: inside, the planner expects so few rows that it sorts the whole table. :no_limit is always null; with
-- a LIMIT clause in each branch the planner reads that branch's index in order.
select d.id, d.event_id, d.original_event_id, d.origin_id, d.death, d.original_event_type, d.original_source_service,
       d.original_target_service, d.error_message, d.error_code, d.signature, d.total_retry_count, d.failed_at,
       d.resolved_at, d.resolved_by_actor, d.resolution_notes, d.replayed_at, d.replay_count
from (
    (
        select d.*
        from public.dead_letter_queue d
        where d.resolved_at is null and :open::boolean and not :ended::boolean
          and (d.failed_at, d.id) < (
              coalesce(:before::timestamptz, 'infinity'), coalesce(:before_id::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
          )
        order by d.failed_at desc, d.id desc
        limit :no_limit::bigint
    )
    union all
    (
        select d.*
        from public.dead_letter_queue d
        where d.resolved_at is not null and :ended and not :open
          and (d.failed_at, d.id) < (
              coalesce(:before::timestamptz, 'infinity'), coalesce(:before_id::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
          )
        order by d.failed_at desc, d.id desc
        limit :no_limit::bigint
    )
    union all
    (
        select d.*
        from public.dead_letter_queue d
        where :open and :ended
          and (d.failed_at, d.id) < (
              coalesce(:before::timestamptz, 'infinity'), coalesce(:before_id::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
          )
        order by d.failed_at desc, d.id desc
        limit :no_limit::bigint
    )
) d
where (:event_type::text is null or d.original_event_type like :event_type)
  and (:source::text is null or d.original_source_service = :source)
  and (:target::text is null or d.original_target_service = :target)
  and (:signature::text is null or d.signature = :signature)
  and (:error_code::text is null or d.error_code = :error_code)
  and (:since::timestamptz is null or d.failed_at >= :since)
  and (:until::timestamptz is null or d.failed_at < :until)
order by d.failed_at desc, d.id desc
limit :limit;

-- name: list_service_dead_letters
-- Of events that were sent to :consumer or by :publisher; either may be null. Each branch reads an index of the service in
-- order. `union` removes those that a service sent to itself.
select *
from (
    (
        select d.id, d.event_id, d.original_event_id, d.origin_id, d.death, d.original_event_type, d.original_source_service,
               d.original_target_service, d.error_message, d.error_code, d.signature, d.total_retry_count, d.failed_at,
               d.resolved_at, d.resolved_by_actor, d.resolution_notes, d.replayed_at, d.replay_count
        from public.dead_letter_queue d
        where d.original_target_service = :consumer::text
          and ((d.resolved_at is null and :open::boolean) or (d.resolved_at is not null and :ended::boolean))
          and (d.failed_at, d.id) < (
              coalesce(:before::timestamptz, 'infinity'), coalesce(:before_id::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
          )
          and (:event_type::text is null or d.original_event_type like :event_type)
          and (:source::text is null or d.original_source_service = :source)
          and (:target::text is null or d.original_target_service = :target)
          and (:signature::text is null or d.signature = :signature)
          and (:error_code::text is null or d.error_code = :error_code)
          and (:since::timestamptz is null or d.failed_at >= :since)
          and (:until::timestamptz is null or d.failed_at < :until)
        order by d.failed_at desc, d.id desc
        limit :limit
    )
    union
    (
        select d.id, d.event_id, d.original_event_id, d.origin_id, d.death, d.original_event_type, d.original_source_service,
               d.original_target_service, d.error_message, d.error_code, d.signature, d.total_retry_count, d.failed_at,
               d.resolved_at, d.resolved_by_actor, d.resolution_notes, d.replayed_at, d.replay_count
        from public.dead_letter_queue d
        where d.original_source_service = :publisher::text
          and ((d.resolved_at is null and :open::boolean) or (d.resolved_at is not null and :ended::boolean))
          and (d.failed_at, d.id) < (
              coalesce(:before::timestamptz, 'infinity'), coalesce(:before_id::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
          )
          and (:event_type::text is null or d.original_event_type like :event_type)
          and (:source::text is null or d.original_source_service = :source)
          and (:target::text is null or d.original_target_service = :target)
          and (:signature::text is null or d.signature = :signature)
          and (:error_code::text is null or d.error_code = :error_code)
          and (:since::timestamptz is null or d.failed_at >= :since)
          and (:until::timestamptz is null or d.failed_at < :until)
        order by d.failed_at desc, d.id desc
        limit :limit
    )
) d
order by d.failed_at desc, d.id desc
limit :limit;

-- name: group_dead_letters
-- The largest group first; the example of a group is its newest dead letter. A null :scan_limit reads all of them.
select d.signature, count(*), min(d.failed_at) as first_failed_at, max(d.failed_at) as last_failed_at,
       (array_agg(d.id order by d.failed_at desc))[1] as example,
       array_agg(distinct d.original_event_type) as event_types
from (
    (
        select * from public.dead_letter_queue where resolved_at is null and :open::boolean
        order by failed_at desc
        limit :scan_limit::bigint
    )
    union all
    (
        select * from public.dead_letter_queue where resolved_at is not null and :ended::boolean
        order by failed_at desc
        limit :scan_limit
    )
) d
where (:event_type::text is null or d.original_event_type like :event_type)
  and (:source::text is null or d.original_source_service = :source)
  and (:target::text is null or d.original_target_service = :target)
  and (:signature::text is null or d.signature = :signature)
  and (:error_code::text is null or d.error_code = :error_code)
  and (:since::timestamptz is null or d.failed_at >= :since)
  and (:until::timestamptz is null or d.failed_at < :until)
group by d.signature
order by count(*) desc, max(d.failed_at) desc
limit :limit;

-- name: count_dead_letters_by_hour
-- The range of failed_at keeps this on an index.
select d.signature, greatest(0, floor(extract(epoch from pabal.now() - d.failed_at) / 3600))::integer as hours_ago, count(*)
from (
    (
        select * from public.dead_letter_queue
        where resolved_at is null and :open::boolean and failed_at > pabal.now() - make_interval(hours => :hours::integer)
        order by failed_at desc
        limit :scan_limit::bigint
    )
    union all
    (
        select * from public.dead_letter_queue
        where resolved_at is not null and :ended::boolean and failed_at > pabal.now() - make_interval(hours => :hours)
        order by failed_at desc
        limit :scan_limit
    )
) d
where d.signature = any(:signatures::text[])
  and (:event_type::text is null or d.original_event_type like :event_type)
  and (:source::text is null or d.original_source_service = :source)
  and (:target::text is null or d.original_target_service = :target)
  and (:error_code::text is null or d.error_code = :error_code)
  and (:since::timestamptz is null or d.failed_at >= :since)
  and (:until::timestamptz is null or d.failed_at < :until)
group by 1, 2;

-- name: list_dead_letter_backlogs
-- Counts by signature first, to find the most frequent error of each service.
select g.service, sum(g.count)::bigint as count, (array_agg(g.signature order by g.count desc))[1] as error
from (
    select coalesce(d.original_target_service, d.original_source_service) as service, d.signature, count(*)
    from public.dead_letter_queue d
    where d.resolved_at is null
    group by 1, 2
) g
group by g.service
having sum(g.count) >= :min_count
order by g.service;

-- name: find_dead_letter
select d.id, d.event_id, d.original_event_id, d.origin_id, d.death, d.original_event_type, d.original_source_service,
       d.original_target_service, d.error_message, d.error_code, d.signature, d.total_retry_count, d.failed_at,
       d.resolved_at, d.resolved_by_actor, d.resolution_notes, d.replayed_at, d.replay_count,
       d.original_payload, d.original_envelope, d.error_stack, coalesce(d.error_history, '[]') as error_history,
       d.resolved_by
from public.dead_letter_queue d
where d.id = :id;

-- name: lock_open_dead_letters
-- Locks in the order of ids, as every statement that locks several. Skips those that another transaction resolves meanwhile.
select d.id
from public.dead_letter_queue d
where d.id = any(:ids::uuid[]) and d.resolved_at is null
order by d.id
for no key update;

-- name: resolve_dead_letters
-- Locks in the order of ids, as every statement that locks several. The second of two transactions finds them resolved.
with open as materialized (
    select d.id
    from public.dead_letter_queue d
    where d.id = any(:ids::uuid[]) and d.resolved_at is null
    order by d.id
    for no key update
),
closed as (
    update public.dead_letter_queue d
    set resolved_at = pabal.now(), resolved_by = :resolved_by, resolved_by_actor = :actor, resolution_notes = :note
    from open o
    where d.id = o.id
    returning d.id, d.original_event_id
),
noted as (
    insert into pabal.audit_log (actor, action, subject, details, client_ip, request_id)
    select :actor, 'dead_letter.resolved', c.id::text, jsonb_build_object('event', c.original_event_id), :client_ip, :request_id
    from closed c
    order by c.id
)
select id from closed;

-- name: purge_dead_letters
-- A dead letter fails before it is resolved, so the condition on failed_at, which has an index, excludes none.
delete from public.dead_letter_queue
where id = any(array(
    select d.id
    from public.dead_letter_queue d
    where d.resolved_at < pabal.now() - :keep::interval and d.failed_at < pabal.now() - :keep::interval
    order by d.failed_at
    limit :batch
    for update skip locked
));

-- name: database_now
select pabal.now();
