-- name: insert_service
insert into public.services (name, description, permissions, may_publish, may_subscribe)
values (:name, :description, :permissions, :may_publish, :may_subscribe)
on conflict (name) do update
set description = excluded.description, permissions = excluded.permissions, may_publish = excluded.may_publish,
    may_subscribe = excluded.may_subscribe, is_active = true, disabled_at = null, removed_at = null, created_at = pabal.now()
where services.removed_at is not null
returning name, description, permissions, may_publish, may_subscribe, is_active, disabled_at, created_at, pabal.now() as now;

-- name: find_service
select name, description, permissions, may_publish, may_subscribe, is_active, disabled_at, created_at, pabal.now() as now
from public.services
where name = :name and removed_at is null;

-- name: list_services
select name, description, permissions, may_publish, may_subscribe, is_active, disabled_at, created_at, pabal.now() as now
from public.services
where name > :after and removed_at is null
order by name
limit :limit;

-- name: has_active_services
select exists (select from public.services where is_active and name <> 'hub');

-- name: lock_service
-- This lock does not block the foreign keys of events and tokens.
select name from public.services where name = :name and removed_at is null for no key update;

-- name: set_service_active
update public.services
set is_active = :active, disabled_at = case when :active then null else pabal.now() end
where name = :name and is_active <> :active and removed_at is null
returning name, description, permissions, may_publish, may_subscribe, is_active, disabled_at, created_at, pabal.now() as now;

-- name: set_service_rights
update public.services
set permissions = :permissions, may_publish = :may_publish, may_subscribe = :may_subscribe
where name = :name and removed_at is null
returning name, description, permissions, may_publish, may_subscribe, is_active, disabled_at, created_at, pabal.now() as now;

-- name: set_service_description
update public.services
set description = :description
where name = :name and removed_at is null
returning name, description, permissions, may_publish, may_subscribe, is_active, disabled_at, created_at, pabal.now() as now;

-- name: find_service_uses
select pabal.service_uses(:name);

-- name: remove_service
update public.services
set is_active = false, disabled_at = coalesce(disabled_at, pabal.now()), removed_at = pabal.now()
where name = :name and removed_at is null;

-- name: list_live_secrets
select id, created_at, expires_at
from public.service_secrets
where service_name = :service and revoked_at is null and (expires_at is null or expires_at > pabal.now())
order by created_at desc;

-- name: count_live_families
select count(*)
from public.token_families
where service_name = :service and revoked_at is null and expires_at > pabal.now();

-- name: limit_secret_lifetimes
-- The earlier secrets stay valid for the overlap, but not longer than before.
update public.service_secrets
set expires_at = least(expires_at, pabal.now() + :overlap::interval)
where service_name = :service and revoked_at is null;

-- name: revoke_service_secrets
update public.service_secrets
set revoked_at = pabal.now()
where service_name = :service and revoked_at is null;

-- name: insert_service_secret
insert into public.service_secrets (id, service_name, secret_hash, expires_at)
values (:id, :service, :secret_hash, pabal.now() + :lifetime::interval);

-- name: list_service_summaries
-- Each number is read from its own index, no further than it is displayed. The last token is taken from the audit log,
-- which outlives the tokens; entries about anything else are rare. Both columns of the subject's index are compared and
-- ordered by, or the planner would read the whole log backwards for a service without an entry.
select s.name, s.description, s.permissions, s.may_publish, s.may_subscribe, s.is_active, s.disabled_at, s.created_at,
       pabal.now() as now,
       (
           select count(*)
           from public.service_secrets k
           where k.service_name = s.name and k.revoked_at is null and (k.expires_at is null or k.expires_at > pabal.now())
       ) as live_secret_count,
       (
           select count(*)
           from (
               select
               from public.token_families f
               where f.service_name = s.name and f.revoked_at is null and f.expires_at > pabal.now()
               limit :max_families
           ) live
       ) as live_family_count,
       (
           select l.at
           from pabal.audit_entries_of(s.name) l
           where l.action in ('token.issued', 'token.refreshed')
           order by l.subject_name desc, l.id desc
           limit 1
       ) as last_token_at
from public.services s
where s.name > :after and s.removed_at is null
order by s.name
limit :limit;
