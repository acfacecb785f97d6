-- name: list_subscription_backlogs
-- The first of each type and priority is one step in an index; of those, no more are counted than anybody needs to know.
-- What another subscription of the service is brought is not waiting for this one.
select s.id as subscription, s.service_name as service,
       case when s.disabled_at is not null then 'disabled' when s.paused_at is not null then 'paused' else 'resting' end as state,
       w.count
from pabal.subscriptions s
cross join lateral (
    select count(*)
    from (
        select
        from pabal.event_heads(s.service_name, s.patterns) h
        cross join lateral (
            select from pabal.event_due d
            where d.service = s.service_name and d.event_type = h.event_type and d.priority = h.priority
              and d.due_at <= pabal.now() - :left::interval
            limit :most
        ) d
        where not exists (
            select from pabal.subscriptions o
            where o.service_name = s.service_name and o.mode in ('push', 'handler') and h.event_type like any (o.patterns)
              and o.disabled_at is null and o.paused_at is null and o.open_until is null
        )
        limit :most
    ) d
) w
where s.mode in ('push', 'handler')
  and (s.disabled_at is not null or s.paused_at is not null or s.open_until is not null)
  and w.count > 0
order by w.count desc, s.id
limit :limit;
