-- name: insert_token
insert into notification.person_tokens (token_hash, discord_id, kind, issued_by, created_at, expires_at)
values (:token_hash, :person, :kind, :issued_by, pabal.now(), pabal.now() + :life::interval)
returning expires_at;

-- name: exchange_link
-- Concurrent exchanges of one link wait for the first, and then match no row.
update notification.person_tokens
set swapped_at = pabal.now()
where token_hash = :token_hash and kind = 'link' and swapped_at is null and expires_at > pabal.now()
returning discord_id, issued_by;

-- name: find_token
-- An exchanged link is no longer valid.
select discord_id as id, token_hash
from notification.person_tokens
where token_hash = :token_hash and kind = :kind and swapped_at is null and expires_at > pabal.now();

-- name: list_ended_tokens
select h.token_hash
from unnest(:hashes::text[]) as h (token_hash)
left join notification.person_tokens t on t.token_hash = h.token_hash and t.expires_at > pabal.now() and t.swapped_at is null
where t.token_hash is null;

-- name: delete_token
delete from notification.person_tokens where token_hash = :token_hash;

-- name: purge_expired_tokens
delete from notification.person_tokens
where token_hash in (select token_hash from notification.person_tokens where expires_at <= pabal.now() limit :batch);
