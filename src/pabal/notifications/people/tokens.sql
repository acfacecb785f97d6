-- name: insert_token
insert into notification.person_tokens (token_hash, discord_id, user_id, kind, issued_by, created_at, expires_at)
values (:token_hash, :person, :user, :kind, :issued_by, pabal.now(), pabal.now() + :life::interval)
returning expires_at;

-- name: exchange_link
-- Concurrent exchanges of one link wait for the first, and then match no row.
update notification.person_tokens
set swapped_at = pabal.now()
where token_hash = :token_hash and kind = 'link' and swapped_at is null and expires_at > pabal.now()
returning discord_id, user_id, issued_by;

-- name: find_token
-- An exchanged link is no longer valid. A registered user acts as their linked Discord account.
select coalesce(p.discord_id, t.discord_id) as id, t.token_hash, t.user_id
from notification.person_tokens t
left join notification.people p on p.user_id = t.user_id
where t.token_hash = :token_hash and t.kind = :kind and t.swapped_at is null and t.expires_at > pabal.now();

-- name: list_ended_tokens
select h.token_hash
from unnest(:hashes::text[]) as h (token_hash)
left join notification.person_tokens t on t.token_hash = h.token_hash and t.expires_at > pabal.now() and t.swapped_at is null
where t.token_hash is null;

-- name: delete_token
delete from notification.person_tokens where token_hash = :token_hash;

-- name: delete_user_tokens
delete from notification.person_tokens where user_id = :user;

-- name: purge_expired_tokens
delete from notification.person_tokens
where token_hash in (select token_hash from notification.person_tokens where expires_at <= pabal.now() limit :batch);
