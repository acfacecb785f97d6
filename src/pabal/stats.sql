-- name: lane_stats
-- One row per lane. Rows that are scheduled for later do not wait. Counted in narrow tables or partial indexes. A message
-- whose lease has expired waits again, although its status is still DELIVERED.
select 'relay' as name,
       count(*) filter (where leased_until is null or leased_until <= pabal.now()) as waiting,
       coalesce(
           pabal.now() - min(created_at) filter (where leased_until is null or leased_until <= pabal.now()), interval '0'
       ) as oldest_due,
       count(*) filter (where leased_until > pabal.now()) as in_flight,
       0::bigint as dead
from public.inbound_messages
where ended_at is null
union all
select 'events', count(*), coalesce(pabal.now() - min(due_at), interval '0'),
       (select coalesce(sum(held), 0) from pabal.event_leases) + (
           select count(*) from public.event_queue e  -- claimed with plain SQL
           where e.id = any(array(select c.id from pabal.plain_claims c))
             and e.status || '' = 'processing' and e.lease is null  -- || '' keeps the planner on the index by id
       ),
       (select count(*) from public.dead_letter_queue where resolved_at is null)
from pabal.event_due
where due_at <= pabal.now()
union all
select 'notifications',
       count(*) filter (where lease is null),
       coalesce(pabal.now() - min(scheduled_at) filter (where lease is null), interval '0'),
       count(*) filter (where lease is not null),
       (select count(*) from notification.requests where state = 'failed')
from notification.requests
where state = 'pending' and scheduled_at <= pabal.now();

-- name: count_active_accounts
select count(*) from public.accounts where disabled_at is null;

-- name: list_chore_ages
select name, pabal.now() - last_success_at as age from pabal.chores order by name;

-- name: unsealed_for
select coalesce(pabal.now() - l.at, interval '0')
from (values (1)) as always
left join lateral (
    select s.below, s.floor from pabal.audit_seals s order by s.id desc limit 1
) s on true
left join lateral (
    select l.at from pabal.audit_log l
    where l.xid >= coalesce(s.below, '0') and l.id + 0 > coalesce(s.floor, 0)  -- "+ 0" prevents a scan of the primary key
    order by l.xid
    limit 1
) l on true;

-- name: count_unhandled
-- For each service with handlers: events that have been due for :min_age and whose type no subscription takes. The types
-- are found by one index probe each; of each type and priority at most :max_count events are counted.
select s.service, (
    select coalesce(sum(c.count), 0)::bigint
    from pabal.event_first_due(s.service, '{%}') f
    cross join lateral (
        select count(*)
        from (
            select from pabal.event_due d
            where d.service = s.service and d.event_type = f.event_type and d.priority = f.priority
              and d.due_at <= pabal.now() - :min_age::interval
            limit :max_count
        ) d
    ) c
    where not exists (
        select from pabal.subscriptions u
        where u.service_name = s.service and u.disabled_at is null and f.event_type like any (u.patterns)
    )
) as count
from (select distinct service_name as service from pabal.subscriptions where mode = 'handler') s
order by s.service;
