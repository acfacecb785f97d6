-- name: find_notification_matches
-- The range bounds the index scan; the suffix decides among the ids in it.
select r.id, 'notification' as kind, r.id as subject_id
from notification.requests r
where r.id between :low::uuid and :high::uuid and right(r.id::text, length(:suffix::text)) = :suffix
order by r.id
limit :limit;

-- name: list_traced_notifications
select r.id, r.recipient_type, r.recipient_id, r.template_key, t.category, r.state, r.reason, r.decision, r.last_error,
       r.scheduled_at, r.sent_at, r.ended_at, r.created_at, r.event_id, r.rule_id, u.name as rule, r.source_service,
       r.requested_by, r.held_by, r.leased_until, a.unhealthy_since, a.reason as refusal,
       o.created_at as arrived_at, o.seen_at, o.read_at, o.archived_at
from notification.requests r
join notification.templates t on t.key = r.template_key
left join notification.rules u on u.id = r.rule_id
left join notification.addresses a on a.recipient_type = r.recipient_type and a.recipient_id = r.recipient_id
left join notification.toasts o on o.id = r.id
where r.id = any(:ids::uuid[])
order by r.created_at, r.id;

-- name: list_traced_attempts
select request_id, attempt, worker, started_at, ended_at, outcome, why, answer
from notification.attempts
where request_id = any(:ids::uuid[])
order by id;

-- name: list_ids_of_events
-- The first notifications of these events or of this correlation id; there may be thousands.
select r.id
from (
    select r.id, r.created_at from notification.requests r where r.event_id = any(:events::uuid[])
    union
    select r.id, r.created_at from notification.requests r where r.correlation_id = :correlation
) r
order by r.created_at, r.id
limit :limit;

-- name: count_by_state
select r.state, count(*) as count
from (
    select r.id, r.state from notification.requests r where r.event_id = any(:events::uuid[])
    union
    select r.id, r.state from notification.requests r where r.correlation_id = :correlation
) r
group by r.state
order by r.state;
