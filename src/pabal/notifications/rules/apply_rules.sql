-- name: list_root_events
-- The hub is owed a delivery of its own; what was published is its parent, or the event a replay of that brought back.
select id, root_id from pabal.root_events(:ids::uuid[]);
