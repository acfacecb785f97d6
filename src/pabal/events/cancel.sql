-- name: cancel
-- Plain SQL, which the table's triggers follow: what waits is no longer due, and a holder learns it at the next heartbeat.
-- In the order of ids, as everybody who changes several.
with open as materialized (
    select e.id
    from public.event_queue e
    where (e.id = :id or (:is_broadcast and e.parent_id = :id)) and e.source_service = :source and e.status in ('pending', 'processing')
    order by e.id
    for no key update
)
update public.event_queue e
set status = 'cancelled', last_error = 'cancelled by ' || :actor
from open o
where e.id = o.id
returning e.id;
