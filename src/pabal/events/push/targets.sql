-- name: list_active_push_subscriptions
-- The subscriptions of these services that may be pushed, and the due event types that each matches.
select s.id, s.service_name, coalesce(d.event_types, '{}') as event_types, s.failures, s.open_until, pabal.now() as now
from pabal.subscriptions s
join public.services v on v.name = s.service_name
cross join lateral (
    select array_agg(distinct h.event_type) as event_types from pabal.event_first_due(s.service_name, s.patterns) h
) d
where s.service_name = any(:services::text[])
  and s.mode = 'push' and v.is_active and s.paused_at is null and s.disabled_at is null
order by s.service_name, s.created_at, s.id;

-- name: list_push_targets
-- Read after the claim, so that a subscription paused, changed or removed before it gets nothing more. The oldest subscription
-- that matches a type gets it. LIKE decides, as in the claim.
select distinct on (t.service, t.event_type)
       t.event_type, s.id, s.service_name, s.url, s.secret,
       case when s.previous_secret_until > pabal.now() then s.previous_secret end as previous_secret,
       s.timeout_seconds, s.failures, s.retry_schedule, s.on_blocked, false as is_probe, pabal.now() as now
from unnest(:services::text[], :event_types::text[]) as t (service, event_type)
join pabal.subscriptions s on s.service_name = t.service and t.event_type like any (s.patterns)
join public.services v on v.name = s.service_name
where s.mode = 'push' and v.is_active and s.paused_at is null and s.disabled_at is null
  and s.open_until is null
order by t.service, t.event_type, s.created_at, s.id;

-- name: lock_probe
-- Before the claim of an event for a probe. Never waits: the same transaction claims for other services. If another transaction
-- holds the row, it probes or changes the subscription.
select id from pabal.subscriptions where id = :id and service_name = :service for no key update skip locked;

-- name: acquire_probe
-- The process that moves open_until first has the probe; for all others the breaker is open again. If that process dies, the
-- next probe is due at the new open_until.
update pabal.subscriptions s
set open_until = pabal.now() + make_interval(secs => s.timeout_seconds) + :slack::interval
from public.services v
where s.id = :id and s.service_name = :service and v.name = s.service_name
  and s.mode = 'push' and v.is_active and s.paused_at is null and s.disabled_at is null
  and s.open_until <= pabal.now()
returning :event_type::text as event_type, s.id, s.service_name, s.url, s.secret,
          case when s.previous_secret_until > pabal.now() then s.previous_secret end as previous_secret,
          s.timeout_seconds, s.failures, s.retry_schedule, s.on_blocked, true as is_probe, pabal.now() as now;

-- name: find_test_target
-- Also for a subscription that is paused, disabled or failing.
select 'pabal.test' as event_type, s.id, s.service_name, s.url, s.secret,
       case when s.previous_secret_until > pabal.now() then s.previous_secret end as previous_secret,
       s.timeout_seconds, s.failures, s.retry_schedule, s.on_blocked, false as is_probe, pabal.now() as now
from pabal.subscriptions s
where s.id = :id and s.service_name = :service and s.mode = 'push';
