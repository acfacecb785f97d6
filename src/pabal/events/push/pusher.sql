-- name: lock_breaker
-- Not found if the URL changed meanwhile: the result of the old receiver does not count for the new one.
select failures, open_until, pabal.now() as now
from pabal.subscriptions
where id = :id and service_name = :service and url = :url
for no key update;

-- name: update_breaker
update pabal.subscriptions
set failures = :failures, open_until = :open_until
where id = :id and service_name = :service;

-- name: release_probe
-- For a probe that was never sent: the next one is due now. The failures stay.
update pabal.subscriptions
set open_until = pabal.now()
where id = :id and service_name = :service and url = :url and open_until > pabal.now();

-- name: schedule_retries
-- At the first failure, so that a push that succeeds at once writes nothing more. The publisher's value is kept for a replay.
update public.event_queue e
set max_retries = a.retries, retries_from = coalesce(e.retries_from, e.max_retries)
from (
    select a.* from unnest(:ids::uuid[], :leases::uuid[], :retries::integer[]) as a (id, lease, retries)
    join public.event_queue e on e.id = a.id and e.lease = a.lease
    order by a.id
    for no key update of e
) a
where e.id = a.id;

-- name: find_blocked_events
-- Whether later events of its ordering key wait for this one, and when its first attempt began. :tries counts the attempts
-- before this one: a replayed event has older entries in its history.
select exists (
           select from pabal.event_order l
           where l.service = e.target_service and l.ordering_key = e.ordering_key and l.seq > e.seq
       ) as holds_others,
       coalesce(
           case when :tries::integer > 0 then (e.error_history -> (-:tries) ->> 'began')::timestamptz end,
           e.processing_started_at, pabal.now()
       ) as first_attempt_at,
       pabal.now() as now
from public.event_queue e
where e.id = :id and e.lease = :lease;
