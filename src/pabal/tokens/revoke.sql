-- name: lock_family
-- Tokens of a family are created under this lock, so the next statement sees all of them.
select id from public.token_families where id = :family for no key update;

-- name: revoke_family
-- The trigger of the table writes the audit entry, for the actor in `context`.
with context as materialized (
    select set_config(
        'pabal.audit_context',
        jsonb_build_object(
            'actor', :actor::text, 'action', :action::text, 'client_ip', :client_ip::inet, 'request_id', :request_id::text
        )::text,
        true
    )
), ended as (
    update public.token_families
    set revoked_at = pabal.now(), revoked_reason = :reason
    where id = :family and revoked_at is null
    returning id, service_name
), tokens as (
    update public.service_tokens t
    set is_revoked = true, revoked_at = pabal.now(), revoked_reason = :reason
    from ended e
    where t.family_id = e.id and not t.is_revoked
), refreshes as (
    update public.refresh_tokens r
    set revoked_at = pabal.now(), revoked_reason = :reason
    from ended e
    where r.family_id = e.id and r.revoked_at is null
), emitted as materialized (  -- one row always, so that joining it below runs it
    select count(pabal.emit_event(
        :event_type, jsonb_build_object('service', service_name, 'family_id', id), priority => 1, id => :event
    ))
    from ended
    where :event_type::text is not null
)
select id from ended cross join emitted cross join context;

-- name: revoke_access_token
with context as materialized (
    select set_config(
        'pabal.audit_context',
        jsonb_build_object('actor', :actor::text, 'client_ip', :client_ip::inet, 'request_id', :request_id::text)::text,
        true
    )
), ended as (
    update public.service_tokens
    set is_revoked = true, revoked_at = pabal.now(), revoked_reason = :reason
    where id = :token and not is_revoked
    returning id
)
select id from ended cross join context;

-- name: list_live_family_ids

select id
from public.token_families
where service_name = :service and revoked_at is null and expires_at > pabal.now()
order by id;

-- name: expire_tokens
with context as materialized (
    select set_config('pabal.audit_context', jsonb_build_object('actor', :actor::text)::text, true)
)
select public.cleanup_expired_tokens() from context;

-- name: purge_token_families
-- Deleting a family deletes its tokens.
delete from public.token_families
where id = any(array(
    (select id from public.token_families where expires_at < pabal.now() - :keep::interval order by expires_at limit :batch)
    union
    (select id from public.token_families where revoked_at < pabal.now() - :keep::interval order by revoked_at limit :batch)
    limit :batch
));
