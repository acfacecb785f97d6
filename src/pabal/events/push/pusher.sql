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

-- name: find_blocked_events
-- Whether later events of its ordering key wait for this one, and when its first attempt began. :tries counts the attempts
-- before this one: a replayed event has older entries in its history. Of more attempts than the history keeps, the newest entry
-- names the first one.
select exists (
           select from pabal.event_order l
           where l.service = e.target_service and l.ordering_key = e.ordering_key and l.seq > e.seq
       ) as holds_others,
       coalesce(
           case when :tries::integer > 0 then (
               coalesce(
                   e.error_history -> (-:tries) ->> 'began',
                   e.error_history -> -1 ->> 'first_began',
                   e.error_history -> 0 ->> 'began'
               )
           )::timestamptz end,
           e.processing_started_at, pabal.now()
       ) as first_attempt_at,
       pabal.now() as now
from public.event_queue e
where e.id = :id and e.lease = :lease;
