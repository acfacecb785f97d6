-- name: event_progress
-- A broadcast is completed when it is published; its deliveries have targets.
-- Two ranges of the index, because the hub's own events do not count. Reads a limited number of rows of a large queue.
with first as (
    (select status, target_service from public.event_queue
     where source_service < 'hub' order by source_service, created_at limit :limit)
    union all
    (select status, target_service from public.event_queue
     where source_service > 'hub' order by source_service, created_at limit :limit)
)
select exists (select from first) as has_event,
       exists (select from first where status = 'completed' and target_service is not null) as has_delivery;

-- name: events_were_published
select exists (select from public.event_queue where source_service < 'hub')
       or exists (select from public.event_queue where source_service > 'hub');
