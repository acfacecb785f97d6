-- name: list_root_events
-- The hub is owed a delivery of its own; what was published is its parent, or the event a replay of that brought back.
select d.id, coalesce(p.origin_id, p.id, d.origin_id, d.id) as root_id
from public.event_queue d
left join public.event_queue p on p.id = d.parent_id
where d.id = any(:ids::uuid[]);
