-- name: list_root_events
-- The hub gets its own delivery of an event. The published event is the delivery's parent, or the event that a replay repeated.
select d.id, coalesce(p.origin_id, p.id, d.origin_id, d.id) as root_id
from public.event_queue d
left join public.event_queue p on p.id = d.parent_id
where d.id = any(:ids::uuid[]);
