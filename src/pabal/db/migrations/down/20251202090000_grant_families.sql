drop index if exists public.idx_token_families_revoked_at;
drop function if exists pabal.known_user(uuid);

create or replace function pabal.create_token_family() returns trigger
language plpgsql
set search_path = ''
as $$
begin
  insert into public.token_families (service_name, expires_at)
  values (new.service_name, greatest(new.expires_at, pabal.now() + interval '30 days'))
  returning id into new.family_id;
  return new;
end
$$;

alter table public.token_families drop constraint if exists family_permissions_known;
alter table public.token_families drop column if exists permissions;
