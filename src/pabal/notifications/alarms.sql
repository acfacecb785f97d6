-- name: hour
select to_char(pabal.now() at time zone 'utc', 'YYYYMMDDHH24');

-- name: undelivered
-- Each once: what was raised says so in its decision.
update notification.requests r
set decision = r.decision || to_jsonb(:step::text)
from (
    select id from notification.requests
    where state = 'failed' and priority = 1 and not decision ? :step
    order by ended_at
    limit :batch
    for no key update skip locked
) f
where r.id = f.id
returning r.id, r.recipient_type, r.recipient_id, r.template_key, r.payload, r.locale, r.last_error, r.correlation_id;
