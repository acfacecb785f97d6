-- name: list_dead_letters
-- The newest first, without what makes a letter heavy. What is unresolved has an index of its own: written as three roads of
-- which those not asked for are never looked at, a year of resolved letters costs a look at the open ones nothing. What is
-- chosen is asked of what comes out of them: asked within, the planner expects so little that it sorts all there is. :reach
-- is null, a limit that is none; with it the planner walks down the index of each road instead.
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
        limit :reach::bigint
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
        limit :reach::bigint
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
        limit :reach::bigint
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

-- name: group_dead_letters
-- What is broken, the most frequent first. The newest letter of each is its example. A page looks at the newest so many;
-- whoever can wait says null, and no limit is one.
select d.signature, count(*), min(d.failed_at) as first_failed_at, max(d.failed_at) as last_failed_at,
       (array_agg(d.id order by d.failed_at desc))[1] as example,
       array_agg(distinct d.original_event_type) as event_types
from (
    (
        select * from public.dead_letter_queue where resolved_at is null and :open::boolean
        order by failed_at desc
        limit :reach::bigint
    )
    union all
    (
        select * from public.dead_letter_queue where resolved_at is not null and :ended::boolean
        order by failed_at desc
        limit :reach
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
-- When the letters of these groups died: so many hours ago. A day is short, and by when they failed there is an index.
select d.signature, greatest(0, floor(extract(epoch from pabal.now() - d.failed_at) / 3600))::integer as hours_ago, count(*)
from (
    (
        select * from public.dead_letter_queue
        where resolved_at is null and :open::boolean and failed_at > pabal.now() - make_interval(hours => :hours::integer)
        order by failed_at desc
        limit :reach::bigint
    )
    union all
    (
        select * from public.dead_letter_queue
        where resolved_at is not null and :ended::boolean and failed_at > pabal.now() - make_interval(hours => :hours)
        order by failed_at desc
        limit :reach
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
-- Of the open ones, by whom they were for; counted by what went wrong first, so that the most common is at hand.
select g.service, sum(g.count)::bigint as count, (array_agg(g.signature order by g.count desc))[1] as error
from (
    select coalesce(d.original_target_service, d.original_source_service) as service, d.signature, count(*)
    from public.dead_letter_queue d
    where d.resolved_at is null
    group by 1, 2
) g
group by g.service
having sum(g.count) >= :least
order by g.service;

-- name: find_dead_letter
select d.id, d.event_id, d.original_event_id, d.origin_id, d.death, d.original_event_type, d.original_source_service,
       d.original_target_service, d.error_message, d.error_code, d.signature, d.total_retry_count, d.failed_at,
       d.resolved_at, d.resolved_by_actor, d.resolution_notes, d.replayed_at, d.replay_count,
       d.original_payload, d.original_envelope, d.error_stack, d.error_history, d.resolved_by
from public.dead_letter_queue d
where d.id = :id;

-- name: lock_open_dead_letters
-- In the order of ids, as everybody who changes several; of those somebody closes meanwhile nothing is given.
select d.id
from public.dead_letter_queue d
where d.id = any(:ids::uuid[]) and d.resolved_at is null
order by d.id
for no key update;

-- name: resolve_dead_letters
-- In the order of ids, as everybody who changes several; who comes second finds them resolved.
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
-- Only what somebody resolved. It failed before that, and by when it failed there is an index.
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
