-- What a family was granted: every token refreshed in it carries at most this.

alter table public.token_families add column if not exists permissions jsonb not null default '["read"]';
comment on column public.token_families.permissions is 'What was granted at its beginning; a refreshed token carries at most this.';

alter table public.token_families drop constraint if exists family_permissions_known;
alter table public.token_families add constraint family_permissions_known check (pabal.known_permissions(permissions));

-- Families made before carried what their last token did.
update public.token_families f
set permissions = t.permissions
from (
  select distinct on (family_id) family_id, permissions
  from public.service_tokens
  order by family_id, created_at desc
) as t
where t.family_id = f.id;

-- A family founded for a plain INSERT is granted what that token is.
create or replace function pabal.found_family() returns trigger
language plpgsql
set search_path = ''
as $$
begin
  insert into public.token_families (service_name, permissions, expires_at)
  values (new.service_name, new.permissions, greatest(new.expires_at, pabal.now() + interval '30 days'))
  returning id into new.family_id;
  return new;
end
$$;
comment on function pabal.found_family() is 'Gives an access token inserted without a family one of its own.';
revoke all on function pabal.found_family() from public, anon, authenticated;

-- Whether somebody is a real person there. Who owns the schema may look; on Supabase service_role may not.
create or replace function pabal.known_user(person uuid) returns uuid
language sql stable
security definer
set search_path = ''
as $$ select u.id from auth.users u where u.id = person $$;
comment on function pabal.known_user(uuid) is 'The id if there is such a person in auth.users, else nothing.';
revoke all on function pabal.known_user(uuid) from public, anon, authenticated;
grant execute on function pabal.known_user(uuid) to service_role;

-- Retention looks for families that ended, by whichever end came first.
create index if not exists idx_token_families_revoked_at on public.token_families (revoked_at) where revoked_at is not null;
