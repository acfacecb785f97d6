-- name: scan_services
-- The next :limit services with queued events, in the order of their names, and whether some are due and the service has a push
-- subscription. One index probe per service, and ten more if it has one, however many events are queued.
with recursive queued as (
    (select d.service, 1 as number from pabal.event_due d where d.service > :after order by d.service limit 1)
    union all
    select (select d.service from pabal.event_due d where d.service > q.service order by d.service limit 1), q.number + 1
    from queued q
    where q.service is not null and q.number < :limit
)
select q.service as name,
       exists (
           select from pabal.subscriptions s
           where s.service_name = q.service and s.mode = 'push' and s.paused_at is null and s.disabled_at is null
       ) and exists (
           select from unnest('{1,2,3,4,5,6,7,8,9,10}'::smallint[]) p
           where (
               select d.due_at from pabal.event_due d where d.service = q.service and d.priority = p order by d.due_at limit 1
           ) <= pabal.now()
       ) as is_due
from queued q
where q.service is not null
order by q.number;
