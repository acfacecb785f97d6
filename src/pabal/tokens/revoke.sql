-- name: lock_family
-- Tokens of a family are created under this lock, so the next statement sees all of them.
select id from public.token_families where id = :family for no key update;

-- name: revoke_family
with ended as (
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
), audited as (
    insert into pabal.audit_log (actor, action, subject, details, client_ip, request_id)
    select :actor, :action, service_name, jsonb_build_object('family', id), :client_ip, :request_id
    from ended
), emitted as materialized (  -- one row always, so that joining it below runs it
    select count(pabal.emit_event(
        :event_type, jsonb_build_object('service', service_name, 'family_id', id), priority => 1, id => :event
    ))
    from ended
    where :event_type::text is not null
)
select id from ended cross join emitted;

-- name: revoke_access_token
with ended as (
    update public.service_tokens
    set is_revoked = true, revoked_at = pabal.now(), revoked_reason = :reason
    where id = :token and not is_revoked
    returning id, family_id, service_name
), audited as (
    insert into pabal.audit_log (actor, action, subject, details, client_ip, request_id)
    select :actor, 'token.revoked', service_name, jsonb_build_object('token', id, 'family', family_id), :client_ip, :request_id
    from ended
)
select id from ended;

-- name: list_live_family_ids

select id
from public.token_families
where service_name = :service and revoked_at is null and expires_at > pabal.now()
order by id;

-- name: expire_tokens
select public.cleanup_expired_tokens();

-- name: purge_token_families
-- Deleting a family deletes its tokens.
delete from public.token_families
where id = any(array(
    (select id from public.token_families where expires_at < pabal.now() - :keep::interval order by expires_at limit :batch)
    union
    (select id from public.token_families where revoked_at < pabal.now() - :keep::interval order by revoked_at limit :batch)
    limit :batch
));
