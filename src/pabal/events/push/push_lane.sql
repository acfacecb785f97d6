-- name: schedule_retries
-- At the first failure, or at the first claim after a lost lease, so that a push that succeeds at once writes nothing more. The publisher's value is kept for a replay.
update public.event_queue e
set max_retries = a.retries, retries_from = coalesce(e.retries_from, e.max_retries)
from (
    select a.* from unnest(:ids::uuid[], :leases::uuid[], :retries::integer[]) as a (id, lease, retries)
    join public.event_queue e on e.id = a.id and e.lease = a.lease
    order by a.id
    for no key update of e
) a
where e.id = a.id;
