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
