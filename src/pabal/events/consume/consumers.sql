-- name: list_silent_consumers
-- Of the services whose events wait longest, those of which none was claimed for :min_age.
select d.service, d.waiting, d.oldest_due, pabal.now() - c.at as claimed_ago
from (
    select d.service, count(*) as waiting, pabal.now() - min(d.due_at) as oldest_due
    from pabal.event_due d
    where d.due_at <= pabal.now() - :min_age::interval
    group by d.service
    order by min(d.due_at)
    limit 10 * :limit::integer
) d
cross join lateral (select pabal.last_event_claim(d.service) as at) c
where c.at is null or c.at <= pabal.now() - :min_age::interval
order by d.oldest_due desc, d.service
limit :limit;

-- name: list_failing_receivers
select s.service_name as service, case when s.disabled_at is null then 'open' else 'disabled' end as state, s.failures,
       s.open_until, s.disabled_reason
from pabal.subscriptions s
where s.mode = 'push' and (s.disabled_at is not null or s.open_until > pabal.now())
order by s.service_name, s.created_at, s.id
limit :limit;

-- name: count_plain_claims
select count(*), coalesce(pabal.now() - min(coalesce(e.processing_started_at, e.updated_at)), interval '0') as oldest
from public.event_queue e
where e.id = any(array(select c.id from pabal.plain_claims c))
  and e.status || '' = 'processing' and e.lease is null;  -- || '' keeps the planner on the index by id
