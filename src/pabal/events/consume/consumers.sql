-- name: list_silent_consumers
-- Of the services whose events wait longest, those of which none was claimed for :min_age.
select d.service, d.waiting, d.oldest_due, pabal.now() - c.at as claimed_ago, coalesce(v.is_active, false) as is_active
from (
    select d.service, count(*) as waiting, pabal.now() - min(d.due_at) as oldest_due
    from pabal.event_due d
    where d.due_at <= pabal.now() - :min_age::interval
    group by d.service
    order by min(d.due_at)
    limit 10 * :limit::integer
) d
left join public.services v on v.name = d.service
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

-- name: list_blocked_keys
-- Ordering keys whose first event failed and waits for its next try, while others wait behind it; the latest try first.
select d.service, d.ordering_key, d.id as event_id, d.due_at - pabal.now() as next_try,
       pabal.now() - b.since as blocked_for,
       (
           select count(*)
           from (
               select from pabal.event_order l
               where l.service = d.service and l.ordering_key = d.ordering_key and l.seq > d.seq
               limit :max_count
           ) l
       ) as waiting
from pabal.event_due d
cross join lateral (
    select e.created_at as since
    from pabal.event_order l
    join public.event_queue e on e.id = l.id
    where l.service = d.service and l.ordering_key = d.ordering_key and l.seq > d.seq
    order by l.seq
    limit 1
) b
where d.is_retry and d.due_at > pabal.now() and d.ordering_key is not null
order by d.due_at desc, d.id
limit :limit;
