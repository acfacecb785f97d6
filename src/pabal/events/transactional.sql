-- name: lock_leased_events
-- Those whose lease still holds, and will until the end of this transaction. Events first and by id, as every other change.
select e.id
from unnest(:ids::uuid[], :leases::uuid[]) as a (id, lease)
join public.event_queue e on e.id = a.id and e.lease = a.lease
order by a.id
for no key update of e;
