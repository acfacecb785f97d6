-- name: insert_operator_session
-- The password was checked before, outside of this transaction. Inserts nothing if it was changed or the operator was
-- disabled in the meantime.
with operator as (
    update pabal.operators
    set last_signed_in_at = pabal.now()
    where id = :operator and password_hash = :password_hash and disabled_at is null
    returning id
)
insert into pabal.operator_sessions (id, token_hash, operator_id, csrf, seed, expires_at, client_ip, user_agent)
select :session, :token_hash, id, :csrf, :seed, pabal.now() + :lifetime::interval, :client_ip, :user_agent
from operator;

-- name: find_operator_session
-- Found by the hash alone: the row says whose session it is. last_seen_at is updated at most once a minute, to save
-- writes.
with session as (
    select *
    from pabal.operator_sessions
    where (token_hash = :token_hash or (previous_hash = :token_hash and rotated_at > pabal.now() - :grace::interval))
      and expires_at > pabal.now()
      and last_seen_at > pabal.now() - :idle::interval
), seen as (
    update pabal.operator_sessions s
    set last_seen_at = pabal.now()
    from session h
    where s.id = h.id and :is_activity::boolean and s.last_seen_at < pabal.now() - interval '1 minute'
)
select o.id, o.name, o.role, h.id as session_id, h.csrf, h.seed, h.token_hash,
       h.token_hash = :token_hash as is_current,
       h.rotated_at <= pabal.now() - :rotation_interval::interval as rotation_due
from session h join pabal.operators o on o.id = h.operator_id
where o.disabled_at is null;

-- name: rotate_cookie
-- Of many concurrent requests with the same cookie one rotates it; the others keep the old one for its last minute.
update pabal.operator_sessions
set token_hash = :after, previous_hash = :before, rotated_at = pabal.now()
where id = :session and token_hash = :before and rotated_at <= pabal.now() - :rotation_interval::interval;

-- name: end_copied_session
-- A cookie that was replaced a while ago is still in use: two browsers share the session.
with ended as (
    delete from pabal.operator_sessions s
    using pabal.operators o
    where o.id = s.operator_id
      and s.previous_hash = :token_hash
      and s.rotated_at <= pabal.now() - :grace::interval
      and s.expires_at > pabal.now()
    returning s.id, o.name
)
insert into pabal.audit_log (actor, action, subject, details)
select 'hub', 'operator.session_copied', name, jsonb_build_object('session', id)
from ended;

-- name: is_operator_session_active
select exists (
    select from pabal.operator_sessions s join pabal.operators o on o.id = s.operator_id
    where s.id = :session and s.expires_at > pabal.now() and s.last_seen_at > pabal.now() - :idle::interval
      and o.disabled_at is null
);

-- name: list_operator_sessions
select id, created_at, last_seen_at, expires_at, host(client_ip) as client_ip, user_agent
from pabal.operator_sessions
where operator_id = :operator and expires_at > pabal.now() and last_seen_at > pabal.now() - :idle::interval
order by created_at desc, id desc;

-- name: delete_operator_sessions
delete from pabal.operator_sessions where operator_id = :operator and id = any(:sessions::uuid[]);

-- name: purge_operator_sessions
delete from pabal.operator_sessions
where id in (
    select id
    from pabal.operator_sessions
    where expires_at <= pabal.now() or last_seen_at <= pabal.now() - :idle::interval
    limit :batch
);
