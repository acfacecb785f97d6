-- name: lanes
-- One row a lane. What waits is due now; what is future is not late. Counted where the rows are narrow or indexed.
select 'relay' as name,
       count(*) filter (where status = 'QUEUED') as waiting,
       coalesce(pabal.now() - min(created_at) filter (where status = 'QUEUED'), interval '0') as oldest_due,
       count(*) filter (where status = 'DELIVERED') as in_flight,
       0::bigint as dead
from public.inbound_messages
where ended_at is null
union all
select 'events',
       (select count(*) from pabal.event_due where due_at <= pabal.now()),
       (select coalesce(pabal.now() - min(due_at), interval '0') from pabal.event_due where due_at <= pabal.now()),
       (select coalesce(sum(held), 0) from pabal.event_leases),
       (select count(*) from public.dead_letter_queue where resolved_at is null)
union all
select 'notifications',
       count(*) filter (where lease is null),
       coalesce(pabal.now() - min(scheduled_at) filter (where lease is null), interval '0'),
       count(*) filter (where lease is not null),
       (select count(*) from notification.requests where state = 'failed')
from notification.requests
where state = 'pending' and scheduled_at <= pabal.now();

-- name: active_accounts
select count(*) from public.accounts where disabled_at is null;
