-- name: lock_recipients
select pabal.lock_names('storm', :recipients::text[]);

-- name: read_storm_state
-- Counts only emergencies that passed; a retry has passed before. Incidents of different services are different.
select r.guarded_at is not null as has_passed,
       coalesce(
           bool_or(
               o.incident = r.incident and o.source_service is not distinct from r.source_service
               and o.guarded_at > pabal.now() - :incident_window::interval
           ),
           false
       ) as is_same_incident,
       count(o.id) as recent_emergencies
from notification.requests r
left join notification.requests o
  on o.recipient_type = r.recipient_type and o.recipient_id = r.recipient_id and o.id <> r.id
 and o.guarded_at > pabal.now() - :storm_window::interval
where r.id = :id
group by r.id;

-- name: mark_passed
update notification.requests
set guarded_at = pabal.now(), decision = decision || to_jsonb(:step::text)
where id = :id;

-- name: add_to_summary
-- Returns the recipients whose pending summary was updated. A summary that a worker holds may be sent already.
with many as (
    select r.recipient_type, r.recipient_id, count(*) as count
    from notification.requests r
    where r.id = any(:ids::uuid[])
    group by r.recipient_type, r.recipient_id
)
update notification.requests s
set payload = jsonb_set(s.payload, '{count}', to_jsonb((s.payload ->> 'count')::bigint + m.count))
from many m
where s.id = (
    select w.id from notification.requests w
    where w.recipient_type = m.recipient_type and w.recipient_id = m.recipient_id
      and w.template_key = :template and w.state = 'pending' and w.priority = 1
      and (w.lease is null or w.leased_until <= pabal.now())
    order by w.created_at desc
    limit 1
    for no key update
)
returning s.recipient_type || ' ' || s.recipient_id;

-- name: insert_summary
-- Due when the oldest emergency in the window leaves it.
insert into notification.requests (
    id, recipient_type, recipient_id, template_key, payload, state, priority, scheduled_at, requested_by, decision
)
select p.id, r.recipient_type, r.recipient_id, :template, jsonb_build_object('count', count(*), 'minutes', :minutes::integer),
       'pending', 1,
       coalesce((
           select min(o.guarded_at)
           from notification.requests o
           where o.recipient_type = r.recipient_type and o.recipient_id = r.recipient_id
             and o.guarded_at > pabal.now() - :storm_window::interval
       ) + :storm_window::interval, pabal.now()),
       'hub', '["emergency"]'
from unnest(:recipients::text[], :summary_ids::uuid[]) as p (recipient, id)
join notification.requests r on r.recipient_type || ' ' || r.recipient_id = p.recipient
where r.id = any(:ids::uuid[])
group by p.id, r.recipient_type, r.recipient_id;
