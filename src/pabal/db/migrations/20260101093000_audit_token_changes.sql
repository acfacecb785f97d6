-- Audit entries for changes of tokens, by plain SQL too, and for the sweep of expired tokens.
--
-- The hub names the actor in the setting pabal.audit_context of its transaction; without it, the actor is the database
-- login. Triggers with transition tables cannot be limited to columns, so each one first looks for changes that matter.

create or replace function pabal.audit_context(
  out actor text, out action text, out client_ip inet, out request_id text, out origin jsonb
)
language sql stable
set search_path = ''
as $$
  select coalesce(s.context ->> 'actor', 'sql:' || session_user),
         s.context ->> 'action',
         coalesce((s.context ->> 'client_ip')::inet, case when s.context is null then inet_client_addr() end),
         s.context ->> 'request_id',
         case when s.context is null then jsonb_build_object('via', 'sql', 'role', current_setting('role')) else '{}' end
  from (select nullif(current_setting('pabal.audit_context', true), '')::jsonb as context) s
$$;
comment on function pabal.audit_context() is 'Who changes tokens in this transaction: named by the hub, else the database login.';
revoke all on function pabal.audit_context() from public, anon, authenticated;

-- Families -------------------------------------------------------------------------------------------------------------

create or replace function pabal.audit_family_changes() returns trigger
language plpgsql
security definer
set search_path = ''
as $$
begin
  if tg_op = 'DELETE' then  -- a family that has ended is only purged
    insert into pabal.audit_log (actor, action, subject, details, client_ip, request_id)
    select c.actor, coalesce(c.action, 'token.revoked'), o.service_name,
           jsonb_build_object('family', o.id, 'deleted', true) || c.origin, c.client_ip, c.request_id
    from old_rows o
    cross join pabal.audit_context() c
    where o.revoked_at is null and o.expires_at > pabal.now();
    return null;
  end if;
  insert into pabal.audit_log (actor, action, subject, details, client_ip, request_id)
  select c.actor,
         case when o.revoked_at is null and n.revoked_at is not null then coalesce(c.action, 'token.revoked')
              else 'token.changed' end,
         n.service_name, jsonb_build_object('family', n.id) || c.origin, c.client_ip, c.request_id
  from old_rows o
  join new_rows n on n.id = o.id
  cross join pabal.audit_context() c
  where (o.revoked_at is null) <> (n.revoked_at is null)
     or (o.service_name, o.expires_at, o.permissions) is distinct from (n.service_name, n.expires_at, n.permissions);
  return null;
end
$$;
comment on function pabal.audit_family_changes() is 'Writes an audit entry for each family that was revoked, deleted while valid, or changed in what it allows.';
revoke all on function pabal.audit_family_changes() from public, anon, authenticated;

drop trigger if exists token_families_audit_update on public.token_families;
create trigger token_families_audit_update
  after update on public.token_families
  referencing old table as old_rows new table as new_rows
  for each statement execute function pabal.audit_family_changes();

drop trigger if exists token_families_audit_delete on public.token_families;
create trigger token_families_audit_delete
  after delete on public.token_families
  referencing old table as old_rows
  for each statement execute function pabal.audit_family_changes();

-- Access tokens --------------------------------------------------------------------------------------------------------
-- The entry of a family covers the tokens that end with it. A token that had already expired and is marked as such is
-- counted by cleanup_expired_tokens().

create or replace function pabal.audit_access_token_changes() returns trigger
language plpgsql
security definer
set search_path = ''
as $$
begin
  if tg_op = 'DELETE' then
    insert into pabal.audit_log (actor, action, subject, details, client_ip, request_id)
    select c.actor, coalesce(c.action, 'token.revoked'), o.service_name,
           jsonb_build_object('token', o.id, 'family', o.family_id, 'deleted', true) || c.origin, c.client_ip, c.request_id
    from old_rows o
    join public.token_families f on f.id = o.family_id and f.revoked_at is null
    cross join pabal.audit_context() c
    where not o.is_revoked and o.expires_at > pabal.now();
    return null;
  end if;
  insert into pabal.audit_log (actor, action, subject, details, client_ip, request_id)
  select c.actor,
         case when not o.is_revoked and n.is_revoked then coalesce(c.action, 'token.revoked') else 'token.changed' end,
         n.service_name, jsonb_build_object('token', n.id, 'family', n.family_id) || c.origin, c.client_ip, c.request_id
  from old_rows o
  join new_rows n on n.id = o.id
  cross join pabal.audit_context() c
  where (
      o.is_revoked <> n.is_revoked
      and not (n.is_revoked and o.expires_at < pabal.now() and n.revoked_reason is not distinct from 'Token expired')
      and not exists (select from public.token_families f where f.id = n.family_id and f.revoked_at = n.revoked_at)
    )
    or (o.service_name, o.family_id, o.token_hash, o.expires_at, o.permissions)
       is distinct from (n.service_name, n.family_id, n.token_hash, n.expires_at, n.permissions);
  return null;
end
$$;
comment on function pabal.audit_access_token_changes() is 'Writes an audit entry for each access token that was revoked, deleted while valid, or changed in what it allows.';
revoke all on function pabal.audit_access_token_changes() from public, anon, authenticated;

drop trigger if exists service_tokens_audit_update on public.service_tokens;
create trigger service_tokens_audit_update
  after update on public.service_tokens
  referencing old table as old_rows new table as new_rows
  for each statement execute function pabal.audit_access_token_changes();

drop trigger if exists service_tokens_audit_delete on public.service_tokens;
create trigger service_tokens_audit_delete
  after delete on public.service_tokens
  referencing old table as old_rows
  for each statement execute function pabal.audit_access_token_changes();

-- Refresh tokens -------------------------------------------------------------------------------------------------------
-- A rotation is no revocation: the successor is made in the same transaction.

create or replace function pabal.audit_refresh_token_changes() returns trigger
language plpgsql
security definer
set search_path = ''
as $$
begin
  if tg_op = 'DELETE' then
    insert into pabal.audit_log (actor, action, subject, details, client_ip, request_id)
    select c.actor, coalesce(c.action, 'token.revoked'), f.service_name,
           jsonb_build_object('refresh_token', o.id, 'family', o.family_id, 'deleted', true) || c.origin,
           c.client_ip, c.request_id
    from old_rows o
    join public.token_families f on f.id = o.family_id and f.revoked_at is null
    cross join pabal.audit_context() c
    where o.revoked_at is null and o.expires_at > pabal.now();
    return null;
  end if;
  insert into pabal.audit_log (actor, action, subject, details, client_ip, request_id)
  select c.actor,
         case when o.revoked_at is null and n.revoked_at is not null then coalesce(c.action, 'token.revoked')
              else 'token.changed' end,
         f.service_name, jsonb_build_object('refresh_token', n.id, 'family', n.family_id) || c.origin,
         c.client_ip, c.request_id
  from old_rows o
  join new_rows n on n.id = o.id
  join public.token_families f on f.id = n.family_id
  cross join pabal.audit_context() c
  where (
      (o.revoked_at is null) <> (n.revoked_at is null)
      and f.revoked_at is distinct from n.revoked_at
      and not (
        n.revoked_at is not null and o.expires_at < pabal.now()
        and n.revoked_reason is not distinct from 'Token expired'
      )
      and not exists (
        select from public.refresh_tokens s
        where s.id = n.replaced_by and o.replaced_by is null and s.family_id = n.family_id and s.created_at = n.revoked_at
      )
    )
    or (o.family_id, o.token_hash, o.expires_at) is distinct from (n.family_id, n.token_hash, n.expires_at);
  return null;
end
$$;
comment on function pabal.audit_refresh_token_changes() is 'Writes an audit entry for each refresh token that was revoked, deleted while valid, or changed in what it allows.';
revoke all on function pabal.audit_refresh_token_changes() from public, anon, authenticated;

drop trigger if exists refresh_tokens_audit_update on public.refresh_tokens;
create trigger refresh_tokens_audit_update
  after update on public.refresh_tokens
  referencing old table as old_rows new table as new_rows
  for each statement execute function pabal.audit_refresh_token_changes();

drop trigger if exists refresh_tokens_audit_delete on public.refresh_tokens;
create trigger refresh_tokens_audit_delete
  after delete on public.refresh_tokens
  referencing old table as old_rows
  for each statement execute function pabal.audit_refresh_token_changes();

-- Truncation -----------------------------------------------------------------------------------------------------------

create or replace function pabal.audit_truncated_tokens() returns trigger
language plpgsql
security definer
set search_path = ''
as $$
declare
  row_count bigint;
begin
  execute format('select count(*) from %I.%I', tg_table_schema, tg_table_name) into row_count;
  insert into pabal.audit_log (actor, action, details, client_ip, request_id)
  select c.actor, coalesce(c.action, 'token.revoked'),
         jsonb_build_object('truncated', tg_table_name, 'count', row_count) || c.origin, c.client_ip, c.request_id
  from pabal.audit_context() c
  where row_count > 0;
  return null;
end
$$;
comment on function pabal.audit_truncated_tokens() is 'Writes one audit entry with the number of rows before a table of tokens is truncated.';
revoke all on function pabal.audit_truncated_tokens() from public, anon, authenticated;

drop trigger if exists token_families_audit_truncate on public.token_families;
create trigger token_families_audit_truncate
  before truncate on public.token_families
  for each statement execute function pabal.audit_truncated_tokens();

drop trigger if exists service_tokens_audit_truncate on public.service_tokens;
create trigger service_tokens_audit_truncate
  before truncate on public.service_tokens
  for each statement execute function pabal.audit_truncated_tokens();

drop trigger if exists refresh_tokens_audit_truncate on public.refresh_tokens;
create trigger refresh_tokens_audit_truncate
  before truncate on public.refresh_tokens
  for each statement execute function pabal.audit_truncated_tokens();

-- Expiry ---------------------------------------------------------------------------------------------------------------

create or replace function public.cleanup_expired_tokens() returns integer
language plpgsql
security definer
set search_path = ''
as $$
declare
  expired_count integer;
  expired_refresh_count integer;
begin
  update public.service_tokens
  set is_revoked = true,
      revoked_at = pabal.now(),
      revoked_reason = 'Token expired'
  where expires_at < pabal.now() and is_revoked = false;
  get diagnostics expired_count = row_count;

  update public.refresh_tokens
  set revoked_at = pabal.now(),
      revoked_reason = 'Token expired'
  where expires_at < pabal.now() and revoked_at is null;
  get diagnostics expired_refresh_count = row_count;

  insert into pabal.audit_log (actor, action, details, client_ip, request_id)
  select c.actor, 'token.expired',
         jsonb_build_object('access_tokens', expired_count, 'refresh_tokens', expired_refresh_count) || c.origin,
         c.client_ip, c.request_id
  from pabal.audit_context() c
  where expired_count + expired_refresh_count > 0;

  return expired_count;
end
$$;
comment on function public.cleanup_expired_tokens() is '만료된 토큰을 폐기 상태로 변경';
revoke all on function public.cleanup_expired_tokens() from public, anon, authenticated;
grant execute on function public.cleanup_expired_tokens() to service_role;
