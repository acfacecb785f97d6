-- name: return_plain_claims
-- Events that plain SQL set to `processing`, without a lease of the hub, longer than :hold ago. The plain update fires the
-- triggers of the table, which make them due; the next claim counts the lost attempt, because processing_started_at is set.
-- Found by an array of ids, never by the status: with a plan made on empty tables, a join would read all events.
with lost as materialized (
    select e.id, coalesce(e.processing_started_at, e.updated_at) as started_at
    from public.event_queue e
    where e.id = any(array(select c.id from pabal.plain_claims c))
      and e.status || '' = 'processing' and e.lease is null and e.target_service is not null
      and coalesce(e.processing_started_at, e.updated_at) <= pabal.now() - :hold::interval
    order by e.id
    limit :batch
    for no key update skip locked
)
update public.event_queue e
set status = 'pending', processing_started_at = lost.started_at, next_retry_at = null,
    last_error = 'claimed with plain SQL and not finished in time', updated_at = pabal.now()
from lost
where e.id = lost.id;

-- name: forget_ended_plain_claims
-- For events that were deleted, or that ended while the repair listed them; the trigger removes all others.
delete from pabal.plain_claims c
where (select e.id from public.event_queue e where e.id = c.id and e.status || '' = 'processing') is null;
