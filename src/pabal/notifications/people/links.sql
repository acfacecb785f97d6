-- name: upsert_service_link
insert into notification.service_links (service_name, discord_id, user_id)
values (:service, :discord, :user)
on conflict (service_name, discord_id) do update
set user_id = excluded.user_id, created_at = pabal.now()
returning service_name, discord_id, user_id, created_at;

-- name: delete_service_link
delete from notification.service_links where service_name = :service and discord_id = :discord;

-- name: list_service_links
select service_name, discord_id, user_id, created_at
from notification.service_links
where discord_id = :discord
order by service_name
limit :limit;

-- name: insert_link_request
-- A newer request of the session replaces its earlier ones: only the newest code works.
with replaced as (
    delete from notification.link_requests where session_hash = :session and used_at is null
)
insert into notification.link_requests (code_hash, user_id, discord_id, session_hash, created_at, expires_at)
values (:code_hash, :user, :discord, :session, pabal.now(), pabal.now() + :life::interval);

-- name: find_dm_channel
select a.dm_channel_id from notification.addresses a where a.recipient_type = 'user_dm' and a.recipient_id = :discord;

-- name: use_link_request
-- Concurrent confirmations wait for the first, and then match no row.
update notification.link_requests
set used_at = pabal.now()
where code_hash = :code_hash and user_id = :user and session_hash = :session and used_at is null and expires_at > pabal.now()
returning discord_id;

-- name: purge_link_requests
delete from notification.link_requests
where code_hash in (select code_hash from notification.link_requests where expires_at <= pabal.now() limit :batch);
