-- name: issue_tokens
-- A grant is one statement: the family, its first tokens, the audit entry and the event. It writes nothing if the
-- service has been disabled in the meantime.
with family as (
    insert into public.token_families (id, service_name, permissions, expires_at)
    select :family, name, :permissions, :family_ends
    from public.services
    where name = :service and is_active
    returning id, service_name
), token as (
    insert into public.service_tokens
        (id, service_name, access_token, token_hash, permissions, expires_at,
         issued_by, issued_by_actor, client_ip, user_agent, family_id)
    select :access_id, service_name, :access, :access_hash, :permissions, :access_ends,
           pabal.known_user(:issued_by), :actor, :client_ip, :user_agent, id
    from family
    returning id, family_id
), refresh as (
    insert into public.refresh_tokens (id, service_token_id, refresh_token, token_hash, expires_at, family_id)
    select :refresh_id, id, :refresh, :refresh_hash, :refresh_ends, family_id
    from token
    where :refresh_id::uuid is not null
), audited as (
    insert into pabal.audit_log (actor, action, subject, details, client_ip, request_id)
    select :actor, 'token.issued', :service, jsonb_build_object('token', id, 'family', family_id), :client_ip, :request_id
    from token
), emitted as materialized (  -- one row always, so that joining it below runs it
    select count(pabal.emit_event(
        'token.issued',
        jsonb_build_object('service', :service::text, 'token_id', id, 'family_id', family_id, 'grant', 'client_credentials'),
        id => :event
    ))
    from token
)
select id from token cross join emitted;

-- name: find_service_credentials
-- Returns one row whether the service exists or not, so that both cases take the same code path.
select s.name, s.permissions, s.is_active, pabal.now() as now,
       array(
           select k.secret_hash
           from public.service_secrets k
           where k.service_name = s.name and k.revoked_at is null and (k.expires_at is null or k.expires_at > pabal.now())
       ) as secret_hashes
from (values (:service::text)) as requested (name)
left join public.services s on s.name = requested.name;
