-- name: find_notifications
-- Somebody else's are not there.
select r.id, r.recipient_type, r.recipient_id, r.guild_id, r.template_key, r.payload, r.state, r.reason, r.decision, r.priority,
       r.attempt_count, r.last_error, r.scheduled_at, r.expires_at, r.sent_at, r.ended_at, r.created_at, r.locale, r.incident,
       r.event_id, r.rule_id, r.source_service, r.requested_by, r.idempotency_key, r.correlation_id, r.again_of
from notification.requests r
where r.id = any(:ids::uuid[]) and (:all::boolean or r.source_service = :service)
order by r.created_at desc, r.id desc;

-- name: list_attempts
select attempt, worker, started_at, ended_at, outcome, why from notification.attempts where request_id = :id order by id;

-- name: list_source_services
-- Whose there may be: nobody's, and each service's.
select '' union all select s.name from public.services s;

-- name: scan_by_service
-- What these services asked for, the newest first, each in the order of its own index. However rare what is chosen is, of none
-- are more than :reach looked at; the last of those comes too, chosen or not: nothing older than it is known to be next.
select r.id, r.created_at, r.is_match, r.scan_position = :reach as is_scan_end
from unnest(:roads::text[]) as w (service)
cross join lateral (
    select r.id, r.created_at, row_number() over (order by r.created_at desc, r.id desc) as scan_position,
           (:state::text is null or r.state = :state) and (:template::text is null or r.template_key = :template) as is_match
    from (
        select r.id, r.created_at, r.state, r.template_key
        from notification.requests r
        where coalesce(r.source_service, '') = w.service
          and (r.created_at, r.id) < (
              coalesce(:before::timestamptz, 'infinity'), coalesce(:before_id::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
          )
        order by r.created_at desc, r.id desc
        limit :reach::bigint
    ) r
) r
where r.is_match or r.scan_position = :reach
order by r.created_at desc, r.id desc
limit :limit;

-- name: scan_unsent_by_service
-- The same of what was not sent: few, and each service's have an index of their own.
select r.id, r.created_at, r.is_match, r.scan_position = :reach as is_scan_end
from unnest(:roads::text[]) as w (service)
cross join lateral (
    select r.id, r.created_at, row_number() over (order by r.created_at desc, r.id desc) as scan_position,
           (:template::text is null or r.template_key = :template) as is_match
    from (
        select r.id, r.created_at, r.template_key
        from notification.requests r
        where r.state = :state and r.state <> 'sent' and coalesce(r.source_service, '') = w.service
          and (r.created_at, r.id) < (
              coalesce(:before::timestamptz, 'infinity'), coalesce(:before_id::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
          )
        order by r.created_at desc, r.id desc
        limit :reach::bigint
    ) r
) r
where r.is_match or r.scan_position = :reach
order by r.created_at desc, r.id desc
limit :limit;

-- name: scan_by_recipient
-- The same of what one recipient was to get, through each channel. What somebody else asked for is not looked at, and ends no
-- look: a service that reads on learns of none.
select r.id, r.created_at, r.is_match, r.scan_position = :reach as is_scan_end
from unnest(:roads::text[]) as w (channel)
cross join lateral (
    select r.id, r.created_at, row_number() over (order by r.created_at desc, r.id desc) as scan_position,
           (:state::text is null or r.state = :state) and (:template::text is null or r.template_key = :template) as is_match
    from (
        select r.id, r.created_at, r.state, r.template_key
        from notification.requests r
        where r.recipient_type = w.channel and r.recipient_id = :recipient
          and (:all::boolean or r.source_service = :service)
          and (r.created_at, r.id) < (
              coalesce(:before::timestamptz, 'infinity'), coalesce(:before_id::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
          )
        order by r.created_at desc, r.id desc
        limit :reach::bigint
    ) r
) r
where r.is_match or r.scan_position = :reach
order by r.created_at desc, r.id desc
limit :limit;

-- name: list_summaries
select r.id, r.recipient_type, r.recipient_id, r.template_key, r.state, r.reason, r.priority, r.created_at, r.sent_at
from notification.requests r
where r.id = any(:ids::uuid[])
order by r.created_at desc, r.id desc;
