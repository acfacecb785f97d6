-- name: find
-- Somebody else's is not there.
select r.id, r.recipient_type, r.recipient_id, r.guild_id, r.template_key, r.payload, r.state, r.reason, r.decision, r.priority,
       r.attempt_count, r.last_error, r.scheduled_at, r.expires_at, r.sent_at, r.ended_at, r.created_at, r.locale, r.incident,
       r.event_id, r.rule_id, r.source_service, r.requested_by, r.idempotency_key, r.correlation_id
from notification.requests r
where r.id = :id and (:all::boolean or r.source_service = :service);

-- name: list
-- The newest first. Three roads, each with its index, and those that are not asked for lead nowhere: one recipient's, through
-- each channel; what was asked for by one service, or by every service and by nobody, the newest of each; and of that only
-- what is not sent, which is little. A road is walked in its order until the page is full (offset 0): guessing that hardly
-- anything is chosen, the planner would fetch all of it first and sort it.
with whose as (
    select :service as service where not :all
    union all
    select '' where :all
    union all
    select s.name from public.services s where :all
)
select r.id, r.recipient_type, r.recipient_id, r.guild_id, r.template_key, r.payload, r.state, r.reason, r.decision, r.priority,
       r.attempt_count, r.last_error, r.scheduled_at, r.expires_at, r.sent_at, r.ended_at, r.created_at, r.locale, r.incident,
       r.event_id, r.rule_id, r.source_service, r.requested_by, r.idempotency_key, r.correlation_id
from (
    (
        select r.*
        from unnest('{user_dm,guild_audit_channel,dashboard_toast}'::text[]) as t (type)
        cross join lateral (
            select r.*
            from (
                select r.*
                from notification.requests r
                where r.recipient_type = t.type and r.recipient_id = :recipient
                  and (r.created_at, r.id) < (
                      coalesce(:before::timestamptz, 'infinity'),
                      coalesce(:before_id::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
                  )
                order by r.created_at desc, r.id desc
                offset 0
            ) r
            where (:all::boolean or r.source_service = :service)
              and (:state::text is null or r.state = :state)
              and (:template::text is null or r.template_key = :template)
            limit :limit
        ) r
    )
    union all
    (
        select r.*
        from whose w
        cross join lateral (
            select r.*
            from (
                select r.*
                from notification.requests r
                where coalesce(r.source_service, '') = w.service
                  and (r.created_at, r.id) < (
                      coalesce(:before::timestamptz, 'infinity'),
                      coalesce(:before_id::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
                  )
                order by r.created_at desc, r.id desc
                offset 0
            ) r
            where :recipient is null and coalesce(:state, 'sent') = 'sent'
              and (:state::text is null or r.state = :state)
              and (:template::text is null or r.template_key = :template)
            limit :limit
        ) r
    )
    union all
    (
        select r.*
        from whose w
        cross join lateral (
            select r.*
            from (
                select r.*
                from notification.requests r
                where r.state <> 'sent' and r.state = :state and coalesce(r.source_service, '') = w.service
                  and (r.created_at, r.id) < (
                      coalesce(:before::timestamptz, 'infinity'),
                      coalesce(:before_id::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
                  )
                order by r.created_at desc, r.id desc
                offset 0
            ) r
            where :recipient is null and (:template::text is null or r.template_key = :template)
            limit :limit
        ) r
    )
) r
order by r.created_at desc, r.id desc
limit :limit;

-- name: attempts
select attempt, worker, started_at, ended_at, outcome, why from notification.attempts where request_id = :id order by id;
