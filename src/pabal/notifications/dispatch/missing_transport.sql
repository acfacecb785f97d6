-- name: mark_waiting_for_transport
-- The step in `decision` lets every process explain why they wait.
update notification.requests r
set decision = r.decision || '"no_transport"'
from (
    select id from notification.requests
    where state = 'pending' and priority in (1, 3) and recipient_type in ('user_dm', 'guild_audit_channel')
      and scheduled_at <= pabal.now() and not decision ? 'no_transport'
    order by id
    limit :batch
    for no key update skip locked
) waiting
where r.id = waiting.id;

-- name: count_without_transport
-- Counts up to a limit: the page and the doctor only need to know whether there are any.
select (
    select count(*) from (
        select 1 from notification.requests
        where state = 'pending' and priority in (1, 3) and recipient_type in ('user_dm', 'guild_audit_channel')
          and scheduled_at <= pabal.now() and decision ? 'no_transport'
        limit :limit
    ) w
) as waiting,
(
    select count(*) from (
        select 1 from notification.requests
        where reason = 'no_transport' and ended_at > pabal.now() - interval '1 day'
        limit :limit
    ) s
) as suppressed;
