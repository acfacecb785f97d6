-- name: find_refresh_token
-- A refresh token with all columns that `decide_refresh` needs. Only its own service finds it.
select r.id, r.family_id, r.revoked_at, r.expires_at, r.replaced_by,
       f.permissions, f.revoked_at as family_revoked_at, f.expires_at as family_expires_at,
       s.permissions as service_permissions, s.is_active,
       next.created_at as spent_at, next.use_count as successor_use_count, next.revoked_at as successor_revoked_at,
       pabal.now() as now
from public.refresh_tokens r
join public.token_families f on f.id = r.family_id
join public.services s on s.name = f.service_name
left join public.refresh_tokens next on next.id = r.replaced_by
where r.token_hash = :hash and f.service_name = :service;

-- name: rotate_refresh_token
-- Locks the family first, like all statements on it. Of many concurrent requests with the same token one finds it
-- unused; the others wait, find it used, and decide again.
with family as (
    select id, service_name
    from public.token_families
    where id = :family and revoked_at is null and expires_at > pabal.now()
    for no key update
), spent as (
    update public.refresh_tokens r
    set replaced_by = :refresh_id,
        use_count = r.use_count + 1,
        last_used_at = pabal.now(),
        revoked_at = pabal.now(),
        revoked_reason = 'Rotated'
    from family f
    where r.id = :spent and r.family_id = f.id and r.replaced_by is null and r.revoked_at is null
    returning r.id, r.family_id, f.service_name
), token as (
    insert into public.service_tokens
        (id, service_name, access_token, token_hash, permissions, expires_at, issued_by_actor, client_ip, user_agent, family_id)
    select :access_id, service_name, :access, :access_hash, :permissions, :access_ends, :actor, :client_ip, :user_agent, family_id
    from spent
    returning id, family_id, service_name
), refresh as (
    insert into public.refresh_tokens (id, service_token_id, refresh_token, token_hash, expires_at, family_id)
    select :refresh_id, id, :refresh, :refresh_hash, :refresh_ends, family_id
    from token
), audited as (
    insert into pabal.audit_log (actor, action, subject, details, client_ip, request_id)
    select :actor, 'token.refreshed', service_name, jsonb_build_object('token', id, 'family', family_id), :client_ip, :request_id
    from token
), emitted as materialized (  -- one row always, so that joining it below runs it
    select count(pabal.emit_event(
        'token.issued',
        jsonb_build_object('service', service_name, 'token_id', id, 'family_id', family_id, 'grant', 'refresh_token'),
        id => :event
    ))
    from token
)
select id from token cross join emitted;

-- name: repeat_response
-- The tokens of the lost response, with an audit entry that they were returned again.
with used as (
    update public.refresh_tokens
    set use_count = use_count + 1, last_used_at = pabal.now()
    where id = :spent
    returning replaced_by, family_id
), issued as (
    select r.id as refresh_id, r.refresh_token, t.id as access_id, t.access_token, t.permissions, t.expires_at,
           t.service_name, a.family_id
    from used a
    join public.refresh_tokens r on r.id = a.replaced_by
    join public.service_tokens t on t.id = r.service_token_id
), audited as (
    insert into pabal.audit_log (actor, action, subject, details, client_ip, request_id)
    select :actor, 'token.refreshed', service_name,
           jsonb_build_object('token', access_id, 'family', family_id, 'again', true), :client_ip, :request_id
    from issued
)
select refresh_id, refresh_token, access_id, access_token, permissions, expires_at, pabal.now() as now
from issued;
