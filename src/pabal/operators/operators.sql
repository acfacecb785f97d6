-- name: insert_operator
insert into pabal.operators (id, name, password_hash, role)
values (:id, :name, :password_hash, :role)
on conflict do nothing
returning id, name, role;

-- name: operator_exists
select exists (select from pabal.operators);

-- name: find_operator_credentials
select id, name, role, password_hash
from pabal.operators
where lower(name) = lower(:name) and disabled_at is null;

-- name: list_operators
select id, name, role, created_at, disabled_at, last_signed_in_at
from pabal.operators
order by lower(name);

-- name: find_operator
select id, name, role, created_at, disabled_at, last_signed_in_at
from pabal.operators
where lower(name) = lower(:name);

-- name: lock_operator
select id, name, role from pabal.operators where lower(name) = lower(:name) for update;

-- name: lock_active_admins
-- Locks all enabled admins, in one order: of two concurrent removals, the second sees that one admin is left.
select id from pabal.operators where role = 'admin' and disabled_at is null order by id for update;

-- name: set_operator_password
update pabal.operators
set password_hash = :password_hash
where id = :operator and (:before::text is null or password_hash = :before);

-- name: set_operator_role
update pabal.operators set role = :role where id = :operator returning id, name, role;

-- name: disable_operator
update pabal.operators set disabled_at = pabal.now() where id = :operator and disabled_at is null;

-- name: enable_operator
update pabal.operators set disabled_at = null where id = :operator and disabled_at is not null;

-- name: delete_operator
delete from pabal.operators where id = :operator;

-- name: delete_operator_sessions
delete from pabal.operator_sessions where operator_id = :operator;
