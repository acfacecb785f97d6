-- name: find_access_token_state
-- Found by the hash alone: the row says whose token it is.
select t.id, t.family_id, t.service_name as service, t.permissions, s.permissions as service_permissions, s.may_publish,
       t.created_at, least(t.expires_at, f.expires_at) as expires_at,
       not t.is_revoked and f.revoked_at is null and s.is_active
           and least(t.expires_at, f.expires_at) > pabal.now() as is_valid,
       pabal.now() as now
from public.service_tokens t
join public.token_families f on f.id = t.family_id
join public.services s on s.name = t.service_name
where t.token_hash = :hash;

-- name: find_refresh_token_state
select r.id, r.family_id, f.service_name as service, f.permissions, s.permissions as service_permissions, s.may_publish,
       r.created_at, least(r.expires_at, f.expires_at) as expires_at,
       r.replaced_by is null and r.revoked_at is null and f.revoked_at is null and s.is_active
           and least(r.expires_at, f.expires_at) > pabal.now() as is_valid,
       pabal.now() as now
from public.refresh_tokens r
join public.token_families f on f.id = r.family_id
join public.services s on s.name = f.service_name
where r.token_hash = :hash;

-- name: list_access_tokens
select t.id, t.family_id, t.service_name as service, t.permissions, s.permissions as service_permissions, s.may_publish,
       t.created_at, t.expires_at as expires_at,
       not t.is_revoked and f.revoked_at is null and s.is_active and t.expires_at > pabal.now() as is_valid,
       pabal.now() as now
from public.service_tokens t
join public.token_families f on f.id = t.family_id
join public.services s on s.name = t.service_name
where (:service::text is null or t.service_name = :service)
  and (:after::timestamptz is null or (t.created_at, t.id) < (:after, :after_id::uuid))
  and (:include_ended::boolean or (not t.is_revoked and t.expires_at > pabal.now()))
order by t.created_at desc, t.id desc
limit :limit;
