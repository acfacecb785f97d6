-- name: find_issued_access_token
select t.id, t.family_id, t.service_name as service, t.permissions, t.created_at, t.expires_at,
       t.revoked_at, t.revoked_reason, false as is_spent,
       f.expires_at as family_expires_at, f.revoked_at as family_revoked_at, f.revoked_reason as family_revoked_reason,
       s.disabled_at, pabal.now() as now
from public.service_tokens t
join public.token_families f on f.id = t.family_id
join public.services s on s.name = t.service_name
where t.token_hash = :hash;

-- name: find_issued_refresh_token
select r.id, r.family_id, f.service_name as service, f.permissions, r.created_at, r.expires_at,
       r.revoked_at, r.revoked_reason, r.replaced_by is not null as is_spent,
       f.expires_at as family_expires_at, f.revoked_at as family_revoked_at, f.revoked_reason as family_revoked_reason,
       s.disabled_at, pabal.now() as now
from public.refresh_tokens r
join public.token_families f on f.id = r.family_id
join public.services s on s.name = f.service_name
where r.token_hash = :hash;
