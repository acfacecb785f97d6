-- name: enter
insert into pabal.portal_sessions (cookie_hash, token_hash, expires_at)
values (:cookie_hash, :token_hash, pabal.now() + :life::interval);

-- name: shown
-- By hash alone: the cookie is the key.
select token_hash from pabal.portal_sessions where cookie_hash = :cookie_hash and expires_at > pabal.now();

-- name: go_on
update pabal.portal_sessions set token_hash = :token_hash where cookie_hash = :cookie_hash and token_hash = :before;

-- name: leave
delete from pabal.portal_sessions where cookie_hash = :cookie_hash;

-- name: awaited
select s.code, s.expires_at - pabal.now() as left
from public.relay_sessions s
where s.id = :session and s.account_id is null and s.revoked_at is null and s.expires_at > pabal.now();

-- name: sweep
delete from pabal.portal_sessions
where cookie_hash in (select cookie_hash from pabal.portal_sessions where expires_at <= pabal.now() limit :batch);
