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

-- name: list_live_families
-- The newest access token of a family comes from its last refresh, if there was one.
select f.id, f.permissions, f.created_at, f.expires_at,
       case when last.created_at > first.created_at then last.created_at end as refreshed_at,
       coalesce(last.tokens, 1) - 1 as refresh_count,
       first.issued_by_actor as by, host(first.client_ip) as client_ip
from (
    select *
    from public.token_families
    where service_name = :service and revoked_at is null and expires_at > pabal.now()
      and (:after::timestamptz is null or (expires_at, id) < (:after, :after_id::uuid))
    order by expires_at desc, id desc
    limit :limit
) f
left join lateral (
    select max(t.created_at) as created_at, count(*) as tokens
    from public.service_tokens t
    where t.family_id = f.id
) last on true
left join lateral (
    select t.created_at, t.issued_by_actor, t.client_ip
    from public.service_tokens t
    where t.family_id = f.id
    order by t.created_at
    limit 1
) first on true
order by f.expires_at desc, f.id desc;

-- name: count_live_families_capped
select count(*)
from (
    select
    from public.token_families
    where service_name = :service and revoked_at is null and expires_at > pabal.now()
    limit :limit
) counted;

-- name: find_family_service
select service_name from public.token_families where id = :family;
