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
