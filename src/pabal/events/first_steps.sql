-- name: event_progress
-- Two ranges of the index, because the hub's own events do not count. Reads a limited number of rows of a large queue.
with first as (
    (select status from public.event_queue where source_service < 'hub' order by source_service, created_at limit :limit)
    union all
    (select status from public.event_queue where source_service > 'hub' order by source_service, created_at limit :limit)
)
select exists (select from first) as has_event,
       exists (select from first where status = 'completed') as has_delivery;

-- name: events_were_published
select exists (select from public.event_queue where source_service < 'hub')
       or exists (select from public.event_queue where source_service > 'hub');
