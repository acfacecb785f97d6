-- name: list_root_events
-- The published event is the parent of the hub's delivery, or the event that a replay repeated.
select id, root_id from pabal.root_events(:ids::uuid[]);
