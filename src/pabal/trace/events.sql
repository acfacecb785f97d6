-- name: find_event_matches
-- Events, dead letters, and purged events of which only dead letters are left, by a range of ids.
-- The range bounds the index scan; the suffix decides among the ids in it.
(
    select e.id, 'event' as kind, e.id as subject_id
    from public.event_queue e
    where e.id between :low::uuid and :high::uuid and right(e.id::text, length(:suffix::text)) = :suffix
    order by e.id
    limit :limit
)
union all
(
    select d.id, 'dead letter', d.original_event_id
    from public.dead_letter_queue d
    where d.id between :low and :high and right(d.id::text, length(:suffix::text)) = :suffix
    order by d.id
    limit :limit
)
union all
(
    select d.original_event_id, 'event', d.original_event_id
    from public.dead_letter_queue d
    where d.original_event_id between :low and :high and right(d.original_event_id::text, length(:suffix::text)) = :suffix
        and d.event_id is null
    order by d.original_event_id
    limit :limit
);

-- name: list_correlated_event_ids
-- Without the deliveries of a broadcast: they are collected with it.
select e.id
from public.event_queue e
where e.correlation_id = :correlation_id and e.parent_id is null
order by e.seq
limit :limit;

-- name: list_traced_events
select e.id, e.event_type, e.source_service, e.target_service, e.status, e.retry_count, e.max_retries, e.created_at,
       e.updated_at, e.next_retry_at, e.processing_started_at, e.processor_id, e.processed_at, e.last_error,
       e.error_history, e.expires_at, e.ordering_key, e.correlation_id, e.parent_id, e.origin_id, e.is_broadcast,
       exists (select from pabal.subscriptions s where s.service_name = e.target_service and s.mode = 'handler')
       and not exists (
           select from pabal.subscriptions s
           where s.service_name = e.target_service and s.disabled_at is null and e.event_type like any (s.patterns)
       ) as is_unhandled,
       l.until as held_until,
       case when e.status = 'pending' and e.ordering_key is not null then (
           select o.id from pabal.event_order o
           where o.service = e.target_service and o.ordering_key = e.ordering_key and o.seq < e.seq
           order by o.seq
           limit 1
       ) end as waits_behind,
       e.status = 'pending' and e.ordering_key is not null and exists (
           select from pabal.event_order o
           where o.service = e.target_service and o.ordering_key = e.ordering_key and o.seq > e.seq
       ) as holds_others,
       v.is_active is false as is_service_disabled,
       w.mode as delivery_mode, w.paused_at, w.disabled_reason, w.open_until,
       case when w.paused_at is not null then (
           select a.actor from pabal.audit_log a
           where a.subject = w.id::text and a.action = 'subscription.paused'
           order by a.id desc
           limit 1
       ) end as paused_by,
       case when e.status = 'pending' and coalesce(e.next_retry_at, e.created_at) <= pabal.now() - :silent_after::interval then
           greatest(coalesce(e.next_retry_at, e.created_at), pabal.last_event_claim(e.target_service))
       end as unclaimed_since
from public.event_queue e
left join pabal.event_leases l on l.id = e.lease
left join public.services v on v.name = e.target_service
left join lateral (
    -- The subscription that delivers it: one that is active, the oldest first.
    select s.id, s.mode, s.paused_at, s.disabled_reason, s.open_until
    from pabal.subscriptions s
    where e.status = 'pending' and s.service_name = e.target_service and e.event_type like any (s.patterns)
    order by s.paused_at is not null or s.disabled_at is not null, s.created_at, s.id
    limit 1
) w on true
where e.id = any(:ids::uuid[])
order by e.seq;

-- name: list_delivery_ids
select d.id from public.event_queue d where d.parent_id = any(:ids::uuid[]) order by d.seq limit :limit;

-- name: list_traced_dead_letters
select d.id, d.original_event_id, d.origin_id, d.death, d.original_event_type, d.original_source_service,
       d.original_target_service, d.error_message, d.error_history, d.failed_at, d.resolved_at, d.resolved_by_actor,
       d.resolution_notes, d.replayed_at
from public.dead_letter_queue d
where d.original_event_id = any(:ids::uuid[])
order by d.original_event_id, d.death;
