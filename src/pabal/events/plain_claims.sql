-- name: return_plain_claims
-- Events that plain SQL set to `processing`, without a lease of the hub, longer than :hold ago. The plain update fires the
-- triggers of the table, which make them due; the next claim counts the lost attempt, because processing_started_at is set.
-- Claims that have ended are forgotten; one that is renewed meanwhile is younger than :hold and stays.
with lost as materialized (
    select e.id, coalesce(e.processing_started_at, e.updated_at) as started_at
    from public.event_queue e
    where e.id = any(array(select event_id from pabal.event_plain_claims))
      and e.status || '' = 'processing' and e.lease is null and e.target_service is not null
      and coalesce(e.processing_started_at, e.updated_at) <= pabal.now() - :hold::interval
      and not exists (select from pabal.event_leases l where e.id = any(l.ids))
    order by e.id
    limit :batch
    for no key update skip locked
),
forgotten as (
    delete from pabal.event_plain_claims p
    where p.claimed_at <= pabal.now() - :hold::interval
      and not exists (
          select from public.event_queue e where e.id = p.event_id and e.status || '' = 'processing' and e.lease is null
      )
)
update public.event_queue e
set status = 'pending', processing_started_at = lost.started_at, next_retry_at = null,
    last_error = 'claimed with plain SQL and not finished in time', updated_at = pabal.now()
from lost
where e.id = lost.id;
