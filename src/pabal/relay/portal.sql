-- name: insert_portal_session
insert into pabal.portal_sessions (cookie_hash, token_hash, expires_at)
values (:cookie_hash, :token_hash, pabal.now() + :life::interval);

-- name: find_portal_token_hash
-- By hash alone: the cookie is the key.
select token_hash from pabal.portal_sessions where cookie_hash = :cookie_hash and expires_at > pabal.now();

-- name: replace_portal_token
update pabal.portal_sessions set token_hash = :token_hash where cookie_hash = :cookie_hash and token_hash = :before;

-- name: delete_portal_session
delete from pabal.portal_sessions where cookie_hash = :cookie_hash;

-- name: find_pending_session_code
select s.code, s.expires_at - pabal.now() as expires_in
from public.relay_sessions s
where s.id = :session and s.account_id is null and s.revoked_at is null and s.expires_at > pabal.now();

-- name: purge_portal_sessions
delete from pabal.portal_sessions
where cookie_hash in (select cookie_hash from pabal.portal_sessions where expires_at <= pabal.now() limit :batch);
