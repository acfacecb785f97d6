-- name: find_notifications
-- Notifications of other services are left out, as if they did not exist.
select r.id, r.recipient_type, r.recipient_id, r.guild_id, r.template_key, r.payload, r.state, r.reason, r.decision, r.priority,
       r.attempt_count, r.last_error, r.scheduled_at, r.expires_at, r.sent_at, r.ended_at, r.created_at, r.locale, r.incident,
       r.event_id, r.rule_id, r.source_service, r.requested_by, r.idempotency_key, r.correlation_id, r.again_of
from notification.requests r
where r.id = any(:ids::uuid[]) and (:all::boolean or r.source_service = :service)
order by r.created_at desc, r.id desc;

-- name: list_attempts
select attempt, worker, started_at, ended_at, outcome, why from notification.attempts where request_id = :id order by id;

-- name: list_source_services
-- Every source a notification may have; '' is none.
select '' union all select s.name from public.services s;

-- name: scan_by_service
-- Notifications of these services, the newest first, each read in index order. At most :reach rows are read per service,
-- however few match. The last row read is returned even if it does not match: it is where the scan must go on.
select r.id, r.created_at, r.is_match, r.scan_position = :reach as is_scan_end
from unnest(:partitions::text[]) as w (service)
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
-- As scan_by_service for notifications that are not sent. They are few, and have an index of their own.
select r.id, r.created_at, r.is_match, r.scan_position = :reach as is_scan_end
from unnest(:partitions::text[]) as w (service)
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
-- As scan_by_service for one recipient, per channel. Rows of other services are skipped before :reach is counted, so that
-- a cursor reveals nothing about them.
select r.id, r.created_at, r.is_match, r.scan_position = :reach as is_scan_end
from unnest(:partitions::text[]) as w (channel)
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
