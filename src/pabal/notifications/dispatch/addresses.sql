-- name: save_dm_channel
-- The row lock serialises with an erasure: after it, the notification is gone and nothing is inserted.
insert into notification.addresses as a (recipient_type, recipient_id, dm_channel_id)
select r.recipient_type, r.recipient_id, :dm_channel::text
from (select recipient_type, recipient_id from notification.requests where id = :notification for key share) r
on conflict (recipient_type, recipient_id) do update
set dm_channel_id = excluded.dm_channel_id
where a.dm_channel_id is distinct from excluded.dm_channel_id;

-- name: clear_dm_channel
update notification.addresses
set dm_channel_id = null
where recipient_type = 'user_dm' and recipient_id = :user and dm_channel_id = :dm_channel;

-- name: mark_unhealthy
-- Keeps the first refusal. The row lock as in save_dm_channel.
insert into notification.addresses as a (recipient_type, recipient_id, unhealthy_since, reason)
select r.recipient_type, r.recipient_id, pabal.now(), :reason::text
from (select recipient_type, recipient_id from notification.requests where id = :notification for key share) r
on conflict (recipient_type, recipient_id) do update
set unhealthy_since = excluded.unhealthy_since, reason = excluded.reason
where a.unhealthy_since is null;

-- name: mark_healthy
update notification.addresses
set unhealthy_since = null, reason = null
where recipient_type = :channel and recipient_id = :recipient and unhealthy_since is not null;

-- name: list_unhealthy_addresses
select a.recipient_type, a.recipient_id, a.unhealthy_since, a.reason
from notification.addresses a
where a.unhealthy_since is not null
order by a.unhealthy_since desc, a.recipient_type, a.recipient_id
limit :limit;
