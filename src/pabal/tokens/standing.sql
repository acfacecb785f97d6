-- name: access
-- The row is the truth: found by its hash alone, since the token itself says whose it is.
select t.id, t.family_id, t.service_name as service, t.permissions, t.created_at,
       least(t.expires_at, f.expires_at) as ends,
       not t.is_revoked and f.revoked_at is null and s.is_active
           and least(t.expires_at, f.expires_at) > pabal.now() as good,
       pabal.now() as now
from public.service_tokens t
join public.token_families f on f.id = t.family_id
join public.services s on s.name = t.service_name
where t.token_hash = :hash;

-- name: refresh
select r.id, r.family_id, f.service_name as service, f.permissions, r.created_at,
       least(r.expires_at, f.expires_at) as ends,
       r.replaced_by is null and r.revoked_at is null and f.revoked_at is null and s.is_active
           and least(r.expires_at, f.expires_at) > pabal.now() as good,
       pabal.now() as now
from public.refresh_tokens r
join public.token_families f on f.id = r.family_id
join public.services s on s.name = f.service_name
where r.token_hash = :hash;

-- name: list
select t.id, t.family_id, t.service_name as service, t.permissions, t.created_at, t.expires_at as ends,
       not t.is_revoked and f.revoked_at is null and s.is_active and t.expires_at > pabal.now() as good,
       pabal.now() as now
from public.service_tokens t
join public.token_families f on f.id = t.family_id
join public.services s on s.name = t.service_name
where (:service::text is null or t.service_name = :service)
  and (:after::timestamptz is null or (t.created_at, t.id) < (:after, :after_id::uuid))
  and (:all::boolean or (not t.is_revoked and t.expires_at > pabal.now()))
order by t.created_at desc, t.id desc
limit :limit;
