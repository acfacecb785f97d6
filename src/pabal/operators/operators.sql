-- name: add
insert into pabal.operators (id, name, password_hash, role)
values (:id, :name, :password_hash, :role)
on conflict do nothing
returning id, name, role;

-- name: any_operator
select exists (select from pabal.operators);

-- name: by_name
select id, name, role, password_hash
from pabal.operators
where lower(name) = lower(:name) and disabled_at is null;

-- name: open_session
insert into pabal.operator_sessions (token_hash, operator_id, csrf, expires_at, client_ip, user_agent)
values (:token_hash, :operator, :csrf, pabal.now() + :life::interval, :client_ip, :user_agent);

-- name: signed_in
update pabal.operators set last_signed_in_at = pabal.now() where id = :operator;

-- name: session
-- Looked up by hash alone: the token is the key, and the answer says whose it is. A page that refreshes itself every
-- two seconds is seen once a minute, which is all anybody wants to know and a thirtieth of the writes.
with seen as (
    update pabal.operator_sessions
    set last_seen_at = pabal.now()
    where token_hash = :token_hash and last_seen_at < pabal.now() - interval '1 minute'
)
select o.id, o.name, o.role, s.csrf
from pabal.operator_sessions s join pabal.operators o on o.id = s.operator_id
where s.token_hash = :token_hash and s.expires_at > pabal.now() and o.disabled_at is null;

-- name: close_session
delete from pabal.operator_sessions where token_hash = :token_hash;

-- name: sweep_sessions
delete from pabal.operator_sessions
where token_hash in (select token_hash from pabal.operator_sessions where expires_at <= pabal.now() limit :batch);
