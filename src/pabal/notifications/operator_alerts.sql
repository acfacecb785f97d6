-- name: current_hour
select to_char(pabal.now() at time zone 'utc', 'YYYYMMDDHH24');

-- name: mark_undelivered_emergencies
-- The step 'raised' in `decision` marks those that were alerted, as in the partial index.
update notification.requests r
set decision = r.decision || '"raised"'
from (
    select id from (
        select id from notification.requests
        where state = 'failed' and priority = 1 and not decision ? 'raised'
        order by ended_at
        limit :batch
        for no key update skip locked
    ) failed
    union all
    select id from (
        select id from notification.requests
        where state = 'pending' and priority = 1 and recipient_type <> 'dashboard_toast' and not decision ? 'raised'
          and coalesce(guarded_at, scheduled_at) <= pabal.now() - :late::interval
        limit :batch
        for no key update skip locked
    ) late
) f
where r.id = f.id
returning r.id, r.recipient_type, r.recipient_id, r.template_key, r.payload, r.locale,
          coalesce(r.last_error, 'not sent yet') as last_error, r.correlation_id;
