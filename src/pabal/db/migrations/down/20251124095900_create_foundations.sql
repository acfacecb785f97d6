-- Drops what the migration created and nothing that existed before. Roles stay: other databases may use them.

drop table if exists public.service_secrets;
drop function if exists pabal.assign_secret_slot();
drop table if exists public.services;
drop function if exists pabal.known_permissions(jsonb);

do $$
declare
  created text[] := array(select kind || ' ' || name from pabal.created_objects);
begin
  if 'table public.profiles' = any(created) then
    drop table public.profiles;
  end if;
  if 'function public.update_updated_at_column()' = any(created) then
    drop function public.update_updated_at_column();
  end if;
  if 'function auth.uid()' = any(created) then
    drop function auth.uid();
  end if;
  if 'table auth.users' = any(created) then
    drop table auth.users;
  end if;
  if 'schema auth' = any(created) then
    drop schema auth;
  end if;
  if 'usage service_role on public' = any(created) then
    revoke usage on schema public from service_role;
  end if;
  if 'usage authenticated on public' = any(created) then
    revoke usage on schema public from authenticated;
  end if;
  drop table pabal.created_objects;
  drop function pabal.uuid7();
  drop function pabal.now();
  if 'schema pabal' = any(created) then
    drop schema pabal;
  else
    revoke usage on schema pabal from service_role, pabal_publisher;
  end if;
end
$$;
