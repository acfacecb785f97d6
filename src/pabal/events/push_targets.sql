-- name: list_active_push_subscriptions
-- Whom pushes may go to, of the services that have something due, and what each would take of it.
select s.id, s.service_name, d.event_types, s.failures, s.open_until, pabal.now() as now
from pabal.subscriptions s
join public.services v on v.name = s.service_name
cross join lateral (
    select array_agg(distinct h.event_type) as event_types from pabal.event_first_due(s.service_name, s.patterns) h
) d
where s.service_name = any(:services::text[])
  and s.mode = 'push' and v.is_active and s.paused_at is null and s.disabled_at is null
  and d.event_types is not null
order by s.service_name, s.created_at, s.id;

-- name: list_push_targets
-- Where events of these types go, read after they were claimed: whoever was paused, changed or removed before that gets
-- nothing more. The oldest that wants a type has it; LIKE decides here as it did in the claim.
select distinct on (t.event_type)
       t.event_type, s.id, s.service_name, s.url, s.secret,
       case when s.previous_secret_until > pabal.now() then s.previous_secret end as previous_secret,
       s.timeout_seconds, s.failures, false as is_probe, pabal.now() as now
from unnest(:event_types::text[]) as t (event_type)
join pabal.subscriptions s on t.event_type like any (s.patterns)
join public.services v on v.name = s.service_name
where s.service_name = :service
  and s.mode = 'push' and v.is_active and s.paused_at is null and s.disabled_at is null
  and s.open_until is null
order by t.event_type, s.created_at, s.id;

-- name: acquire_probe
-- The one push a failing receiver is asked with: whoever moves open_until on first has it, and to everybody else the
-- breaker is open again. Should that process die, the next probe is due when the time given here is over.
update pabal.subscriptions s
set open_until = pabal.now() + make_interval(secs => s.timeout_seconds) + :slack::interval
from public.services v
where s.id = :id and s.service_name = :service and v.name = s.service_name
  and s.mode = 'push' and v.is_active and s.paused_at is null and s.disabled_at is null
  and s.open_until <= pabal.now()
returning :event_type::text as event_type, s.id, s.service_name, s.url, s.secret,
          case when s.previous_secret_until > pabal.now() then s.previous_secret end as previous_secret,
          s.timeout_seconds, s.failures, true as is_probe, pabal.now() as now;

-- name: find_test_target
-- For a test, which also one that is paused, failing or given up may be put to.
select 'pabal.test' as event_type, s.id, s.service_name, s.url, s.secret,
       case when s.previous_secret_until > pabal.now() then s.previous_secret end as previous_secret,
       s.timeout_seconds, s.failures, false as is_probe, pabal.now() as now
from pabal.subscriptions s
where s.id = :id and s.service_name = :service and s.mode = 'push';
