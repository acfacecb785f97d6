-- name: lock_failed_request
-- Locked, so that the second of two concurrent resends sees the first. Emergencies never expire.
select r.recipient_type, r.recipient_id, r.guild_id, r.template_key, r.payload, r.state, r.locale, r.expires_at, r.incident,
       r.event_id, r.source_service, r.correlation_id,
       coalesce(r.expires_at <= pabal.now() and r.priority <> 1, false) as is_expired
from notification.requests r
where r.id = :id
for no key update;

-- name: list_resends
select r.id, r.state from notification.requests r where r.again_of = :id order by r.created_at, r.id;
