-- name: find_event
-- Visible to its source, its target and the subscribers of a broadcast.
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

-- name: list_event_page
-- The row with which the payloads reach :max_bytes is the last one. "offset 0": the text is made once.
select *
from (
    select p.*, sum(octet_length(p.payload_json)) over (order by p.created_at desc, p.id desc) - octet_length(p.payload_json)
                as bytes_before
    from (
        select e.id, e.event_type, e.source_service, e.target_service, e.payload::text as payload_json, e.status, e.priority,
               e.retry_count, e.max_retries, e.next_retry_at, e.processing_started_at, e.processor_id, e.processed_at,
               e.last_error, e.error_code, e.created_at, e.expires_at, e.ordering_key, e.idempotency_key, e.correlation_id,
               e.traceparent, e.parent_id, coalesce(e.origin_id, e.id) as origin_id, e.is_broadcast
        from public.event_queue e
        where e.id = any(:ids::uuid[]) and (:all::boolean or e.source_service = :service or e.target_service = :service)
        offset 0
    ) p
) p
where bytes_before < :max_bytes
order by created_at desc, id desc;

-- name: scan_newest_events
-- Reads at most :scan_limit rows, the newest first, however rare a match is. Also returns the last row read, where the next
-- scan begins. Only ids: the caller reads the matching rows by id, so that the scan does not carry their payloads.
select e.id, e.created_at, e.is_match, e.scan_position = :scan_limit as is_scan_end
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
        limit :scan_limit::bigint
    ) e
) e
where e.is_match or e.scan_position = :scan_limit
order by e.created_at desc, e.id desc
limit :limit;

-- name: scan_sent_events
-- scan_newest_events on the index by source. The source is a range of one value, and part of the sort order, so that only this
-- index fits: with an equality, the planner searches all events for those of a source that sent none.
select e.id, e.created_at, e.is_match, e.scan_position = :scan_limit as is_scan_end
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
        limit :scan_limit::bigint
    ) e
) e
where e.is_match or e.scan_position = :scan_limit
order by e.source_service desc, e.created_at desc, e.id desc
limit :limit;

-- name: scan_received_events
-- scan_newest_events on the index by target. :except_source leaves out the events that scan_sent_events returns as well.
select e.id, e.created_at, e.is_match, e.scan_position = :scan_limit as is_scan_end
from (
    select e.id, e.created_at, e.target_service,
           row_number() over (order by e.target_service desc, e.created_at desc, e.id desc) as scan_position,
           (:status::text is null or e.status = :status) and (:event_type::text is null or e.event_type like :event_type)
           and (:source::text is null or e.source_service = :source) and e.source_service is distinct from :except_source as is_match
    from (
        select e.id, e.created_at, e.target_service, e.source_service, e.status, e.event_type
        from public.event_queue e
        where e.target_service >= :target
          and (e.target_service, e.created_at, e.id) < (
              :target::text, coalesce(:before::timestamptz, 'infinity'),
              coalesce(:before_id::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
          )
        order by e.target_service desc, e.created_at desc, e.id desc
        limit :scan_limit::bigint
    ) e
) e
where e.is_match or e.scan_position = :scan_limit
order by e.target_service desc, e.created_at desc, e.id desc
limit :limit;

-- name: list_event_summaries
select e.id, e.event_type, e.source_service, e.target_service, e.status, e.retry_count, e.max_retries,
       e.processing_started_at, e.created_at, e.last_error, e.is_broadcast
from public.event_queue e
where e.id = any(:ids::uuid[])
order by e.created_at desc, e.id desc;

-- name: list_deliveries
-- A subscriber sees only its own delivery.
select d.id, d.target_service, d.status, d.retry_count, d.processed_at, d.last_error
from public.event_queue d
where d.parent_id = :id and (:all::boolean or d.source_service = :service or d.target_service = :service)
order by d.target_service;

-- name: list_dead_letter_ids
select id from public.dead_letter_queue where original_event_id = :id order by death;

-- name: cancel_event
-- The triggers of the table do the rest: a pending event is no longer due, and the heartbeat of a claimed one reports it lost.
-- Locks events by id, then their leases by id: the triggers alone would lock leases in the order of the events and deadlock
-- with a heartbeat.
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
-- One index probe per type and priority finds the first due event; at most :max_count events are counted from there. Events
-- that another subscription of the service receives do not count.
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
              and d.due_at <= pabal.now() - :min_age::interval
            limit :max_count
        ) d
        where not exists (
            select from pabal.subscriptions o
            where o.service_name = s.service_name and o.mode in ('push', 'handler') and h.event_type like any (o.patterns)
              and o.disabled_at is null and o.paused_at is null and o.open_until is null
        )
        limit :max_count
    ) d
) w
where s.mode in ('push', 'handler')
  and (s.disabled_at is not null or s.paused_at is not null or s.open_until is not null)
  and w.count > 0
order by w.count desc, s.id
limit :limit;
