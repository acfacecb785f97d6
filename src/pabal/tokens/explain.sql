-- name: access
select t.id, t.family_id, t.service_name as service, t.permissions, t.created_at, t.expires_at,
       t.revoked_at, t.revoked_reason, false as spent,
       f.expires_at as family_ends, f.revoked_at as family_revoked_at, f.revoked_reason as family_reason,
       s.disabled_at, pabal.now() as now
from public.service_tokens t
join public.token_families f on f.id = t.family_id
join public.services s on s.name = t.service_name
where t.token_hash = :hash;

-- name: refresh
select r.id, r.family_id, f.service_name as service, f.permissions, r.created_at, r.expires_at,
       r.revoked_at, r.revoked_reason, r.replaced_by is not null as spent,
       f.expires_at as family_ends, f.revoked_at as family_revoked_at, f.revoked_reason as family_reason,
       s.disabled_at, pabal.now() as now
from public.refresh_tokens r
join public.token_families f on f.id = r.family_id
join public.services s on s.name = f.service_name
where r.token_hash = :hash;
