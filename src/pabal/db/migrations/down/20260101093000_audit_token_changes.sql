drop trigger if exists refresh_tokens_audit_truncate on public.refresh_tokens;
drop trigger if exists service_tokens_audit_truncate on public.service_tokens;
drop trigger if exists token_families_audit_truncate on public.token_families;
drop function if exists pabal.audit_truncated_tokens();
drop trigger if exists refresh_tokens_audit_delete on public.refresh_tokens;
drop trigger if exists refresh_tokens_audit_update on public.refresh_tokens;
drop function if exists pabal.audit_refresh_token_changes();
drop trigger if exists service_tokens_audit_delete on public.service_tokens;
drop trigger if exists service_tokens_audit_update on public.service_tokens;
drop function if exists pabal.audit_access_token_changes();
drop trigger if exists token_families_audit_delete on public.token_families;
drop trigger if exists token_families_audit_update on public.token_families;
drop function if exists pabal.audit_family_changes();

create or replace function public.cleanup_expired_tokens() returns integer
language plpgsql
security definer
set search_path = ''
as $$
declare
  expired_count integer;
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

  return expired_count;
end
$$;
comment on function public.cleanup_expired_tokens() is '만료된 토큰을 폐기 상태로 변경';
revoke all on function public.cleanup_expired_tokens() from public, anon, authenticated;
grant execute on function public.cleanup_expired_tokens() to service_role;

drop function if exists pabal.audit_context();
