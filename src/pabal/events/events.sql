-- name: find_event
-- Visible to its source, its target and the receivers of a broadcast; somebody else's is not there.
select e.id, e.event_type, e.source_service, e.target_service, e.payload, e.status, e.priority, e.retry_count, e.max_retries,
       e.next_retry_at, e.processing_started_at, e.processor_id, e.processed_at, e.last_error, e.error_code, e.error_history,
       e.created_at, e.expires_at, e.ordering_key, e.idempotency_key, e.correlation_id, e.traceparent,
       e.parent_id, coalesce(e.origin_id, e.id) as origin_id, e.is_broadcast
from public.event_queue e
where e.id = :id
  and (
      :all::boolean or e.source_service = :service or e.target_service = :service
      or (e.is_broadcast and exists (
          select from public.event_queue d where d.parent_id = e.id and d.target_service = :service
      ))
  );

-- name: list_events_by_id
select e.id, e.event_type, e.source_service, e.target_service, e.payload, e.status, e.priority, e.retry_count, e.max_retries,
       e.next_retry_at, e.processing_started_at, e.processor_id, e.processed_at, e.last_error, e.error_code, e.error_history,
       e.created_at, e.expires_at, e.ordering_key, e.idempotency_key, e.correlation_id, e.traceparent,
       e.parent_id, coalesce(e.origin_id, e.id) as origin_id, e.is_broadcast
from public.event_queue e
where e.id = any(:ids::uuid[]) and (:all::boolean or e.source_service = :service or e.target_service = :service)
order by e.created_at desc, e.id desc;

-- name: scan_newest_events
-- However rare what is chosen is, no more than :reach rows are looked at, the newest first; the last of them comes too, so
-- that the next look can begin there. The rows themselves are read by their ids: through here they would be carried for nothing.
select e.id, e.created_at, e.is_match, e.scan_position = :reach as is_scan_end
from (
    select e.id, e.created_at, row_number() over (order by e.created_at desc, e.id desc) as scan_position,
           (:status::text is null or e.status = :status) and (:event_type::text is null or e.event_type like :event_type) as is_match
    from (
        select e.id, e.created_at, e.status, e.event_type
        from public.event_queue e
        where (e.created_at, e.id) < (
            coalesce(:before::timestamptz, 'infinity'), coalesce(:before_id::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
        )
        order by e.created_at desc, e.id desc
        limit :reach::bigint
    ) e
) e
where e.is_match or e.scan_position = :reach
order by e.created_at desc, e.id desc
limit :limit;

-- name: scan_sent_events
-- The same on the road of who sent them. Said as a range that begins and ends with the one source, its index is the only one
-- in the order asked for: of a source that has sent nothing, the planner would look for it among all events.
select e.id, e.created_at, e.is_match, e.scan_position = :reach as is_scan_end
from (
    select e.id, e.created_at, e.source_service,
           row_number() over (order by e.source_service desc, e.created_at desc, e.id desc) as scan_position,
           (:status::text is null or e.status = :status) and (:event_type::text is null or e.event_type like :event_type)
           and coalesce(:target::text is null or e.target_service = :target, false) as is_match
    from (
        select e.id, e.created_at, e.source_service, e.status, e.event_type, e.target_service
        from public.event_queue e
        where e.source_service >= :source
          and (e.source_service, e.created_at, e.id) < (
              :source::text, coalesce(:before::timestamptz, 'infinity'),
              coalesce(:before_id::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
          )
        order by e.source_service desc, e.created_at desc, e.id desc
        limit :reach::bigint
    ) e
) e
where e.is_match or e.scan_position = :reach
order by e.source_service desc, e.created_at desc, e.id desc
limit :limit;

-- name: scan_received_events
-- The same on the road of whom they are for, besides what comes from somebody whose own road is looked along as well.
select e.id, e.created_at, e.is_match, e.scan_position = :reach as is_scan_end
from (
    select e.id, e.created_at, e.target_service,
           row_number() over (order by e.target_service desc, e.created_at desc, e.id desc) as scan_position,
           (:status::text is null or e.status = :status) and (:event_type::text is null or e.event_type like :event_type)
           and (:source::text is null or e.source_service = :source) and e.source_service is distinct from :besides as is_match
    from (
        select e.id, e.created_at, e.target_service, e.source_service, e.status, e.event_type
        from public.event_queue e
        where e.target_service >= :target
          and (e.target_service, e.created_at, e.id) < (
              :target::text, coalesce(:before::timestamptz, 'infinity'),
              coalesce(:before_id::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
          )
        order by e.target_service desc, e.created_at desc, e.id desc
        limit :reach::bigint
    ) e
) e
where e.is_match or e.scan_position = :reach
order by e.target_service desc, e.created_at desc, e.id desc
limit :limit;

-- name: list_event_summaries
select e.id, e.event_type, e.source_service, e.target_service, e.status, e.retry_count, e.max_retries,
       e.processing_started_at, e.created_at, e.last_error, e.is_broadcast
from public.event_queue e
where e.id = any(:ids::uuid[])
order by e.created_at desc, e.id desc;

-- name: list_deliveries
-- How those of a broadcast stand; a receiver learns of its own only.
select d.id, d.target_service, d.status, d.retry_count, d.processed_at, d.last_error
from public.event_queue d
where d.parent_id = :id and (:all::boolean or d.source_service = :service or d.target_service = :service)
order by d.target_service;

-- name: list_dead_letter_ids
select id from public.dead_letter_queue where original_event_id = :id order by death;

-- name: cancel_event
-- Plain SQL, which the table's triggers follow: what waits is no longer due, and a holder learns it at the next heartbeat.
-- In the order of ids, as everybody who changes several, and then their leases in theirs: the triggers would come to those
-- in the order of the events, and meet a heartbeat halfway.
with open as materialized (
    select e.id, e.lease
    from public.event_queue e
    where (e.id = :id or (:is_broadcast and e.parent_id = :id)) and e.source_service = :source and e.status in ('pending', 'processing')
    order by e.id
    for no key update
),
held as materialized (
    select l.id from pabal.event_leases l where l.id in (select lease from open) order by l.id for no key update
)
update public.event_queue e
set status = 'cancelled', last_error = 'cancelled by ' || :actor
from open o
where e.id = o.id and (select count(*) from held) >= 0
returning e.id;

-- name: find_event_status
select e.status from public.event_queue e where e.id = :id and e.source_service = :source;

-- name: list_subscription_backlogs
-- The first of each type and priority is one step in an index; of those, no more are counted than anybody needs to know.
-- What another subscription of the service is brought is not waiting for this one.
select s.id as subscription, s.service_name as service,
       case when s.disabled_at is not null then 'disabled' when s.paused_at is not null then 'paused' else 'resting' end as state,
       w.count
from pabal.subscriptions s
cross join lateral (
    select count(*)
    from (
        select
        from pabal.event_first_due(s.service_name, s.patterns) h
        cross join lateral (
            select from pabal.event_due d
            where d.service = s.service_name and d.event_type = h.event_type and d.priority = h.priority
              and d.due_at <= pabal.now() - :left::interval
            limit :most
        ) d
        where not exists (
            select from pabal.subscriptions o
            where o.service_name = s.service_name and o.mode in ('push', 'handler') and h.event_type like any (o.patterns)
              and o.disabled_at is null and o.paused_at is null and o.open_until is null
        )
        limit :most
    ) d
) w
where s.mode in ('push', 'handler')
  and (s.disabled_at is not null or s.paused_at is not null or s.open_until is not null)
  and w.count > 0
order by w.count desc, s.id
limit :limit;
